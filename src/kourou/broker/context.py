"""The state and services of one broker that most of its packages use.

The package `writing` and the modules that hold topics, groups and clients are below this module:
their constructors take what they use.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kourou.broker.clients import CallClient, Clients
from kourou.broker.config import BrokerConfig
from kourou.broker.groups import Groups
from kourou.broker.live_config import LiveConfig
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.topics import Topics
from kourou.broker.writing.group_commit import GroupCommit
from kourou.clock import Clock
from kourou.disk import Disk
from kourou.model.host import Host
from kourou.model.msgid import UniqueIdGenerator
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.runtime import Offload
from kourou.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Shared state and services of one broker, whose store is open.

    Attributes:
        config: the options at the start.
        live_config: the current options.
        disk: holds the store and the tables.
        clock: gives the store time.
        random: chooses queues where clients did not, and other random values.
        offload: runs blocking calls off the event loop.
        store: stores the messages.
        is_as_left: whether the files of pops, timers and levels count all that the log has: not
            after a kill, and not where another master may have continued the log.
        commit: appends, writes and syncs records.
        stats: counters of all components.
        later: answers requests that have to wait, each in a task.
        unique_ids: generates ids for messages and batches without one.
        store_host: the broker's address in message ids; with None, the address that the client
            connected to.
        topics: all topics; a new topic is saved there before a message is stored in it.
        groups: all consumer groups.
        clients: the connected clients.
        call_client: sends a request to a client.
    """

    config: BrokerConfig
    live_config: LiveConfig
    disk: Disk
    clock: Clock
    random: Random
    offload: Offload
    store: MessageStore
    is_as_left: bool
    commit: GroupCommit
    stats: BrokerStats
    later: DeferredReplies
    unique_ids: UniqueIdGenerator
    store_host: Host | None
    topics: Topics
    groups: Groups
    clients: Clients
    call_client: CallClient
