"""The parts of a broker whose store is open, made and joined.

Only what they are made of stands here: `wiring.py` joins the handlers of requests to them, and
`server.py` starts and stops them.
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
from kourou.broker.pulling.checked_reads import CheckedReads
from kourou.broker.pulling.filter_bit_maps import FilterBitMaps
from kourou.broker.pulling.held_pulls import HeldPulls
from kourou.broker.pulling.pull import PullHandler
from kourou.broker.pulling.pull_checks import PullChecks
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.subscriptions import Subscriptions
from kourou.broker.tables import Tables
from kourou.broker.timer.make import make_timers
from kourou.broker.transactions.transaction_counts import FILE_NAME as TRANSACTIONS_FILE
from kourou.broker.transactions.transaction_counts import parse_transaction_counts
from kourou.broker.transactions.transactions import Transactions
from kourou.broker.writing.age_clock import FILE_NAME as CLOCK_FILE
from kourou.broker.writing.age_clock import AgeClock, parse_age_clock
from kourou.broker.writing.flusher import Flusher
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.index_following import IndexFollowing
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.broker.writing.retention import Retention
from kourou.disk import Disk
from kourou.remoting.later import LaterReplies
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import Arrival, MessageStore
from kourou.store.state.config_file import ConfigFile

_LOCAL: Final = "127.0.0.1"


class Parts:
    """What a broker is made of, apart from its handlers and its server.

    Attributes:
        config, disk, runtime, store, flusher: as they were given.
        live: the options as they are now, of those that can change.
        later: answers requests that wait.
        pool: connections to name servers.
        tables: topics, groups, offsets.
        clients: who is connected.
        queue_locks: which of them consumes a queue in order.
        stats: counts what the others do.
        commit: the way into the log.
        queue_deletion: the way out of the queues.
        age_clock: tells how old messages are.
        retention: removes what is too old.
        reads: reads queues for the two below.
        subscriptions: what the groups of `clients` want.
        pull_checks: decides who may pull what, for all who serve pulls.
        pulls: serves pulls, and holds those that wait for messages.
        delay: delivers what became due by its level.
        timers: delivers what became due by its time.
        transactions: takes and ends half messages.
        index: keeps the key index close behind the log.
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
        """Make the parts; none acts before it is started.

        Raises:
            CorruptRecordError: a table's file and its backup do not parse.
        """
        self.config: Final = config
        self.live: Final = LiveConfig(config, runtime.clock.now_ms())
        self.disk: Final = disk
        self.runtime: Final = runtime
        self.store: Final = store
        self.flusher: Final = flusher
        self.later: Final = LaterReplies()
        self.pool: Final = ConnectionPool(
            runtime, {}, config.limits, tls=config.transport.tls_client()
        )
        self.tables: Final = Tables(config, disk, runtime, store)
        self.ids_notifier: Final = ConsumerIdsNotifier(self.tables.groups, self.live)
        self.clients: Final = self._make_clients()
        self.queue_locks: Final = self.tables.locks.locks
        self.stats: Final = BrokerStats(config.cluster_name, steady_ms())
        self.commit: Final = GroupCommit(
            store, flusher, asyncio.get_running_loop(), config, self._on_arrivals
        )
        if config.store.fill_segments_ahead and config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self.commit.on_write = store.fill_ahead
        self.queue_deletion: Final = QueueDeletion(self.commit, runtime.offload)
        self.age_clock: Final = self._make_age_clock()
        self.retention: Final = self._make_retention()
        self.live.on_changed.append(self._on_config_changed)
        self.reads: Final = CheckedReads(store, self.live, runtime.offload)
        self.held_pulls: Final = HeldPulls(self.live)
        self.subscriptions: Final = self._make_subscriptions()
        self.pull_checks: Final = self._make_pull_checks()
        self.pulls: Final = self._make_pulls()
        self.delay: Final = self._make_delay(disk)
        self.transactions: Final = self._make_transactions(disk)
        self.timers: Final = make_timers(
            disk,
            runtime,
            store=store,
            topics=self.tables.topics,
            commit=self.commit,
            config=self.live,
            stats=self.stats,
        )
        self.index: Final = IndexFollowing(store, runtime.offload, runtime.clock)

    def _make_clients(self) -> Clients:
        return Clients(
            self.ids_notifier,
            clients_max=self.config.clients_max,
            expiry_ms=self.config.channel_expired_timeout_ms,
        )

    def _make_age_clock(self) -> AgeClock:
        file = ConfigFile(self.disk, CLOCK_FILE, parse_age_clock, restores=True)
        runtime = self.runtime
        return AgeClock(self.live, self.store, runtime.clock, file, runtime.offload)

    def _make_retention(self) -> Retention:
        return Retention(
            self.live,
            self.store,
            self.disk,
            deletions=self.queue_deletion.turn,
            offload=self.runtime.offload,
            clock=self.runtime.clock,
            age_clock=self.age_clock,
        )

    def _make_subscriptions(self) -> Subscriptions:
        tables = self.tables
        self.clients.on_emptied = tables.filters.unregister
        self.store.ask_bit_maps(FilterBitMaps(self.live, tables.filters, self.store))
        return Subscriptions(
            self.clients, tables.topics, tables.filters, self.held_pulls, call_connection
        )

    def _make_pull_checks(self) -> PullChecks:
        tables = self.tables
        return PullChecks(self.live, tables.topics, tables.groups, self.clients, tables.filters)

    def _make_pulls(self) -> PullHandler:
        return PullHandler(
            self.live,
            checks=self.pull_checks,
            offsets=self.tables.offsets,
            store=self.store,
            reads=self.reads,
            held=self.held_pulls,
            ask_member=self.subscriptions.ask,
            later=self.later,
            stats=self.stats,
        )

    def _make_delay(self, disk: Disk) -> DelayDelivery:
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

    def _make_transactions(self, disk: Disk) -> Transactions:
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
        """Hand on the options that tables keep for themselves."""
        self.tables.topics.auto_create = config.auto_create_topic_enable
        self.tables.groups.auto_create = config.auto_create_subscription_group

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        """Tell those who wait for messages which ones consumers can see from now on."""
        self.held_pulls.on_arrivals(arrivals)
        self.delay.on_arrivals(arrivals)
        self.timers.on_arrivals()
        self.index.notify()
