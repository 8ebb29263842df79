"""Builds the components of a broker whose store is open, and connects them to each other.

`wiring.py` builds the request handlers, which use these components; `server.py` starts and stops
the components.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kourou.broker.advertised import store_host
from kourou.broker.client_calls import call_connection
from kourou.broker.client_handlers import ConsumerIdsNotifier
from kourou.broker.clients import Clients
from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.delays.delay import DelayDelivery
from kourou.broker.delays.delay_offsets import FILE_NAME as DELAY_FILE
from kourou.broker.delays.delay_offsets import parse_delay_offsets
from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.filter_bit_maps import FilterBitMaps
from kourou.broker.pulling.held_pulls import HeldPulls
from kourou.broker.pulling.pull import PullHandler
from kourou.broker.pulling.pull_checks import PullChecks
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.subscriptions import Subscriptions
from kourou.broker.tables import Tables
from kourou.broker.timer.composition import build_timers
from kourou.broker.transactions.transaction_counts import FILE_NAME as TRANSACTIONS_FILE
from kourou.broker.transactions.transaction_counts import parse_transaction_counts
from kourou.broker.transactions.transactions import Transactions
from kourou.broker.writing.age_clock import FILE_NAME as CLOCK_FILE
from kourou.broker.writing.age_clock import AgeClock, parse_age_clock
from kourou.broker.writing.flusher import Flusher
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.index_follower import IndexFollower
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.broker.writing.retention import Retention
from kourou.disk import Disk
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import Arrival, MessageStore
from kourou.store.state.config_file import ConfigFile

_LOCAL: Final = "127.0.0.1"


class Components:
    """The components of a broker, except its handlers and its ports.

    Attributes:
        config, disk, runtime, store, flusher: the constructor's arguments.
        live: the current options.
        later: answers requests that have to wait, each in a task.
        pool: connections to name servers.
        tables: topics, groups, offsets and other tables with files of their own.
        ids_notifier: tells members of a group to rebalance.
        clients: the connected clients.
        queue_locks: the queue locks of ordered consumers.
        stats: counters of the other components.
        commit: appends, writes and syncs records.
        queue_deletion: deletes queues.
        age_clock: the clock that message ages are measured by.
        retention: removes expired messages.
        reads: verified reads of queues, for pulls, delays and transactions.
        held_pulls: the pulls that wait for messages.
        subscriptions: updates the subscriptions of the groups in `clients`.
        pull_checks: checks whether a client may pull from a queue, for the fast and general path.
        pulls: serves pulls on the general path.
        delay: delivers messages of delay levels when they are due.
        timers: delivers scheduled messages when they are due.
        transactions: stores and ends half messages.
        index: keeps the key index up to date with the log.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        disk: Disk,
        runtime: Runtime,
        flusher: Flusher,
        store: MessageStore,
    ) -> None:
        """Build the components; none acts before it is started.

        Raises:
            CorruptRecordError: neither the file of a table nor its backup parses.
        """
        self.config: Final = config
        self.live: Final = LiveConfig(config, runtime.clock.now_ms())
        self.disk: Final = disk
        self.runtime: Final = runtime
        self.store: Final = store
        self.flusher: Final = flusher
        self.later: Final = DeferredReplies()
        self.pool: Final = ConnectionPool(
            runtime, {}, config.limits, tls=config.transport.tls_client()
        )
        self.tables: Final = Tables(config, disk, runtime, store)
        self.ids_notifier: Final = ConsumerIdsNotifier(self.tables.groups, self.live)
        self.clients: Final = self._build_clients()
        self.queue_locks: Final = self.tables.locks.locks
        self.stats: Final = BrokerStats(config.cluster_name, steady_ms())
        self.commit: Final = GroupCommit(
            store, flusher, asyncio.get_running_loop(), config, self._on_arrivals
        )
        if config.store.fill_segments_ahead and config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self.commit.on_write = store.writer.fill_ahead
        self.queue_deletion: Final = QueueDeletion(self.commit, runtime.offload)
        self.age_clock: Final = self._build_age_clock()
        self.retention: Final = self._build_retention()
        self.live.on_changed.append(self._on_config_changed)
        self.reads: Final = VerifiedReads(store, self.live, runtime.offload)
        self.held_pulls: Final = HeldPulls(self.live)
        self.subscriptions: Final = self._build_subscriptions()
        self.pull_checks: Final = self._build_pull_checks()
        self.pulls: Final = self._build_pulls()
        self.delay: Final = self._build_delay(disk)
        self.transactions: Final = self._build_transactions(disk)
        self.timers: Final = build_timers(
            disk,
            runtime,
            store=store,
            topics=self.tables.topics,
            commit=self.commit,
            config=self.live,
            stats=self.stats,
        )
        self.index: Final = IndexFollower(store, runtime.offload, runtime.clock)

    def _build_clients(self) -> Clients:
        return Clients(
            self.ids_notifier,
            clients_max=self.config.clients_max,
            expiry_ms=self.config.channel_expired_timeout_ms,
        )

    def _build_age_clock(self) -> AgeClock:
        file = ConfigFile(self.disk, CLOCK_FILE, parse_age_clock, restores=True)
        runtime = self.runtime
        return AgeClock(self.live, self.store, runtime.clock, file, runtime.offload)

    def _build_retention(self) -> Retention:
        return Retention(
            self.live,
            self.store,
            self.disk,
            deletion_lock=self.queue_deletion.lock,
            offload=self.runtime.offload,
            clock=self.runtime.clock,
            age_clock=self.age_clock,
        )

    def _build_subscriptions(self) -> Subscriptions:
        tables = self.tables
        self.clients.on_emptied = tables.filters.unregister
        self.store.writer.set_bit_map_function(FilterBitMaps(self.live, tables.filters, self.store))
        return Subscriptions(
            self.clients, tables.topics, tables.filters, self.held_pulls, call_connection
        )

    def _build_pull_checks(self) -> PullChecks:
        tables = self.tables
        return PullChecks(self.live, tables.topics, tables.groups, self.clients, tables.filters)

    def _build_pulls(self) -> PullHandler:
        return PullHandler(
            self.live,
            checks=self.pull_checks,
            offsets=self.tables.offsets,
            store=self.store,
            reads=self.reads,
            held=self.held_pulls,
            ask_member=self.subscriptions.request_from_member,
            later=self.later,
            stats=self.stats,
        )

    def _build_delay(self, disk: Disk) -> DelayDelivery:
        return DelayDelivery(
            store=self.store,
            topics=self.tables.topics,
            commit=self.commit,
            file=ConfigFile(disk, DELAY_FILE, parse_delay_offsets, restores=True),
            stats=self.stats,
            offload=self.runtime.offload,
            reads=self.reads,
            clock=self.runtime.clock,
            delay_levels_ms=self.config.delay_levels_ms,
            disk=disk,
            segment_bytes=self.config.store.commitlog_segment_bytes,
        )

    def _build_transactions(self, disk: Disk) -> Transactions:
        return Transactions(
            config=self.live,
            tables=self.tables,
            store=self.store,
            commit=self.commit,
            reads=self.reads,
            clients=self.clients,
            stats=self.stats,
            later=self.later,
            runtime=self.runtime,
            age_clock=self.age_clock,
            file=ConfigFile(disk, TRANSACTIONS_FILE, parse_transaction_counts),
            host=store_host(self.config) or (_LOCAL, self.config.port),
        )

    def _on_config_changed(self, config: BrokerConfig) -> None:
        """Copy live options to the tables that hold them."""
        self.tables.topics.auto_create = config.auto_create_topic_enable
        self.tables.groups.auto_create = config.auto_create_subscription_group

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        """Notify the components that wait for messages of those that became visible."""
        self.held_pulls.on_arrivals(arrivals)
        self.delay.on_arrivals(arrivals)
        self.timers.on_arrivals()
        self.index.notify()
