"""Builds the components of a broker whose store is open, and connects them to each other.

`wiring.py` builds the request handlers, which use these components; `server.py` starts and stops
the components.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kourou.broker.acting_services import ActingServices, EscapedDeliveries
from kourou.broker.advertised import store_host
from kourou.broker.client_calls import call_connection
from kourou.broker.client_handlers import ConsumerIdsNotifier
from kourou.broker.clients import CallClient, Clients
from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.context import BrokerContext
from kourou.broker.copies import build_master
from kourou.broker.delays.delay import FILE_NAME as DELAY_FILE
from kourou.broker.delays.delay import DelayDelivery, parse_delay_offsets
from kourou.broker.live_config import LiveConfig
from kourou.broker.popping.popping import Popping
from kourou.broker.pulling.consumer_filters import FilterBitMaps
from kourou.broker.pulling.held_pulls import HeldPulls
from kourou.broker.pulling.pull import PullHandler
from kourou.broker.pulling.pull_checks import PullChecks
from kourou.broker.pulling.verdicts import slave_code
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.replication.controlled_replica import ControlledReplica
from kourou.broker.replication.escape_bridge import EscapeBridge, delivery_queue_elsewhere
from kourou.broker.replication.foreign_messages import ForeignMessages
from kourou.broker.replication.in_sync_keeper import InSyncKeeper
from kourou.broker.replication.member_group import MasterWatch, MemberGroup
from kourou.broker.replication.metadata_copy import FollowedTables, MetadataCopy
from kourou.broker.replication.record_repair import RecordRepair
from kourou.broker.replication.revive_relay import ReviveRelay
from kourou.broker.replication.slave import ReplicationSlave
from kourou.broker.replication.table_follower import FILE_NAME as CHANGES_FILE
from kourou.broker.replication.table_follower import TableFollower, parse_tables_file
from kourou.broker.replication.table_log import TableLog
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.subscriptions import Subscriptions
from kourou.broker.tables import Tables
from kourou.broker.timer.timer_counts import FILE_NAME as TIMERS_FILE
from kourou.broker.timer.timer_counts import TimerCounts, parse_timer_metrics
from kourou.broker.timer.timer_follower import TimerFollower
from kourou.broker.timer.timer_storage import TimerStorage
from kourou.broker.timer.timers import Timers
from kourou.broker.transactions.escaped_halves import EscapedHalves
from kourou.broker.transactions.transaction_counts import FILE_NAME as TRANSACTIONS_FILE
from kourou.broker.transactions.transaction_counts import parse_transaction_counts
from kourou.broker.transactions.transactions import Transactions
from kourou.broker.writing.age_clock import FILE_NAME as CLOCK_FILE
from kourou.broker.writing.age_clock import AgeClock, parse_age_clock
from kourou.broker.writing.flusher import Flusher
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.index_follower import IndexFollower
from kourou.broker.writing.put import Destination
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.broker.writing.retention import Retention
from kourou.disk import Disk
from kourou.model.msgid import UniqueIdGenerator
from kourou.protocol.brokers import HARuntimeInfo
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.topic_names import revive_topic
from kourou.protocol.topic_table import RegisterBrokerResponseHeader
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
        context: what the components share: options, store, commit, statistics, topics and others.
        runtime, flusher, replica: the constructor's arguments.
        pool: connections to name servers and other brokers.
        members: the brokers of the broker's name.
        tables: topics, groups, offsets and other tables with files of their own.
        ids_notifier: tells members of a group to rebalance.
        queue_locks: the queue locks of ordered consumers.
        queue_deletion: deletes queues.
        age_clock: the clock that message ages are measured by.
        retention: removes expired messages.
        repair: repairs damaged records from other replicas.
        bridge: stores messages elsewhere, while a slave acts for its master; None if it does not.
        reads: verified reads of queues, for pulls, delays and transactions.
        held_pulls: the pulls that wait for messages.
        subscriptions: updates the subscriptions of the connected groups.
        pull_checks: checks whether a client may pull from a queue, for the fast and general path.
        pulls: serves pulls on the general path.
        delay: delivers messages of delay levels when they are due.
        timers: delivers scheduled messages when they are due.
        popping: serves pops, acks and revives.
        transactions: stores and ends half messages.
        index: keeps the key index up to date with the log.
        master: sends the log to slaves; None if the broker accepts none.
        slave: copies the log of a master; None if the broker is one.
        metadata: copies the tables of a master, if the broker is a slave.
        acting: what a slave does while it acts for its master; None if it never does.
        watch: observes whether the master of a slave is registered; None for a master, and in
            controller mode.
        table_log: puts changes of the tables into the log; None without a controller, and on a
            slave.
        table_follower: applies the changes that the log has; None without a controller.
        timer_follower: keeps the timer's files of a slave with a controller; otherwise None.
        arrival_listeners: called with the messages that became visible to consumers, oldest first.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        runtime: Runtime,
        flusher: Flusher,
        store: MessageStore,
        replica: ControlledReplica | None = None,
        call_client: CallClient = call_connection,
    ) -> None:
        """Build the components; none acts before it is started.

        Args:
            config: the broker's options.
            disk: holds the store and the tables.
            runtime: network, clock, randomness, and the executor of blocking calls.
            flusher: syncs the commit log.
            store: the open store.
            replica: role and epochs in controller mode; None without a controller.
            call_client: sends a request to a client.

        Raises:
            CorruptRecordError: neither the file of a table nor its backup parses.
        """
        self.runtime: Final = runtime
        self.flusher: Final = flusher
        self.replica: Final = replica
        tls = config.transport.tls_client()
        self.pool: Final = ConnectionPool(runtime, {}, config.limits, tls=tls)
        self.members: Final = MemberGroup(config, self.pool)
        self.tables: Final = Tables(config, disk, runtime, store)
        live_config = LiveConfig(config, runtime.clock.now_ms())
        if replica is not None:
            self.tables.topics.begin_role(replica.role.master_epoch)
        self.ids_notifier: Final = ConsumerIdsNotifier(self.tables.groups, live_config)
        self.arrival_listeners: Final[list[Callable[[list[Arrival]], None]]] = []
        self.context: Final = self._build_context(live_config, disk, store, call_client)
        live_config.on_changed.append(self._on_config_changed)
        self.slave: Final = self._build_slave()
        self.metadata: Final = self._build_metadata()
        self.queue_locks: Final = self.tables.locks.locks
        self.queue_deletion: Final = QueueDeletion(self.context.commit, runtime.offload)
        self.age_clock: Final = self._build_age_clock()
        self.retention: Final = self._build_retention()
        self.repair: Final = self._build_repair()
        self.bridge: Final = self._build_bridge()
        self.reads: Final = VerifiedReads(store, live_config, runtime.offload, self.repair.repair)
        self.held_pulls: Final = HeldPulls(live_config)
        self.subscriptions: Final = self._build_subscriptions()
        self.pull_checks: Final = PullChecks(self.context, self.tables.filters)
        self.pulls: Final = self._build_pulls()
        self.delay: Final = self._build_delay()
        self.transactions: Final = self._build_transactions()
        self.timers: Final = self._build_timers()
        self.popping: Final = self._build_popping()
        self.acting: Final = self._build_acting()
        self.watch: Final = self._build_watch()
        self.index: Final = IndexFollower(store, runtime.offload, runtime.clock)
        self.master: Final = build_master(self.context, runtime, replica)
        self.table_log: Final = self._build_table_log()
        self.table_follower: Final = self._build_table_follower()
        self.timer_follower: Final = self._build_timer_follower()
        self._add_listeners()

    @property
    def keeper(self) -> InSyncKeeper | None:
        """Keeps the in-sync set, if the broker is a master in controller mode."""
        return None if self.master is None else self.master.keeper

    def _add_listeners(self) -> None:
        self.tables.topics.on_topic_changed = self.popping.on_topic_changed
        self.tables.groups.on_group_changed = self.popping.on_group_changed
        self.arrival_listeners.extend((self.held_pulls.on_arrivals, lambda _: self.index.notify()))
        if self.slave is None:  # a slave delivers nothing by itself
            self.arrival_listeners.extend(
                (
                    self.delay.on_arrivals,
                    lambda _: self.timers.on_arrivals(),
                    self.popping.on_arrivals,
                )
            )

    def _build_context(
        self, live_config: LiveConfig, disk: Disk, store: MessageStore, call_client: CallClient
    ) -> BrokerContext:
        config, runtime, tables = live_config.current, self.runtime, self.tables
        host, random = store_host(config), runtime.random
        loop = asyncio.get_running_loop()
        commit = GroupCommit(store, self.flusher, loop, config, self._on_arrivals)
        if config.store.fill_segments_ahead and config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            commit.on_write = store.writer.fill_ahead
        return BrokerContext(
            config=config,
            live_config=live_config,
            disk=disk,
            clock=runtime.clock,
            random=random,
            offload=runtime.offload,
            store=store,
            is_as_left=store.recovery.was_clean and self.replica is None,
            commit=commit,
            stats=BrokerStats(config.cluster_name, steady_ms()),
            later=DeferredReplies(),
            unique_ids=UniqueIdGenerator(  # random numbers make its ids unique
                _LOCAL if host is None else host[0],
                random.getrandbits(16),
                lambda: random.getrandbits(32),
            ),
            store_host=host,
            topics=tables.topics,
            groups=tables.groups,
            clients=Clients(
                self.ids_notifier,
                clients_max=config.clients_max,
                expiry_ms=config.channel_expired_timeout_ms,
            ),
            call_client=call_client,
        )

    def _build_age_clock(self) -> AgeClock:
        file = ConfigFile(self.context.disk, CLOCK_FILE, parse_age_clock, restores=True)
        runtime = self.runtime
        return AgeClock(
            self.context.live_config,
            self.context.store,
            runtime.clock,
            file,
            runtime.offload,
            runtime.boot_id(),
        )

    def _build_repair(self) -> RecordRepair:
        acknowledged = None if self.replica is None else self.replica.acknowledged
        return RecordRepair(
            self.context.store,
            self.context.config.broker_id,
            self.members,
            self.pool,
            self.runtime.offload,
            acknowledged,
        )

    def _build_retention(self) -> Retention:
        return Retention(
            self.context.live_config,
            self.context.store,
            self.context.disk,
            deletion_lock=self.queue_deletion.lock,
            offload=self.runtime.offload,
            clock=self.runtime.clock,
            age_clock=self.age_clock,
        )

    def _build_subscriptions(self) -> Subscriptions:
        context, filters = self.context, self.tables.filters
        context.clients.on_emptied = self._forget_filters
        context.store.writer.set_bit_map_function(
            FilterBitMaps(context.live_config, filters, context.store)
        )
        return Subscriptions(
            context.clients, context.topics, filters, self.held_pulls, context.call_client
        )

    def _forget_filters(self, group: str) -> None:
        self.tables.filters.unregister(group)
        self.popping.filters.remove_group(group)

    def _build_pulls(self) -> PullHandler:
        return PullHandler(
            self.context,
            checks=self.pull_checks,
            offsets=self.tables.offsets,
            reads=self.reads,
            held=self.held_pulls,
            ask_member=self.subscriptions.request_from_member,
            code_of=self._pull_code,
        )

    def _pull_code(self, code: ResponseCode) -> ResponseCode:
        return code if self.slave is None else slave_code(code)

    def _build_delay(self) -> DelayDelivery:
        file = ConfigFile(self.context.disk, DELAY_FILE, parse_delay_offsets, restores=True)
        return DelayDelivery(self.context, self.reads, file, self._destination)

    def _build_transactions(self) -> Transactions:
        file = ConfigFile(self.context.disk, TRANSACTIONS_FILE, parse_transaction_counts)
        return Transactions(self.context, self.tables, self.reads, self.age_clock, file)

    def _build_timers(self) -> Timers:
        context = self.context
        if self.slave is not None:  # its files lack what the master has done since
            context = replace(context, is_as_left=False)
        file = ConfigFile(context.disk, TIMERS_FILE, parse_timer_metrics)
        counts = TimerCounts(context, file)
        return Timers(context, TimerStorage(context, counts), counts, self._destination)

    def _build_slave(self) -> ReplicationSlave | None:
        config = self.context.config
        if not config.replication.is_slave:
            return None
        return ReplicationSlave(
            config.replication,
            self.context.store,
            self.context.commit,
            self.runtime,
            config.store.commitlog_segment_bytes,
            self.replica,
        )

    def _build_metadata(self) -> MetadataCopy:
        tables, config = self.tables, self.context.config
        if self.slave is not None:
            tables.offsets.begin_following()
        followed = FollowedTables(
            tables.offsets,
            tables.modes,
            tables.locks,
            self.context.store.reader.topic_begin,
            lambda body: self.delay.follow(body),  # noqa: PLW0108 - it is built later
        )
        return MetadataCopy(config, tables.topics, tables.groups, followed, self.pool)

    def _build_popping(self) -> Popping:
        foreign = ForeignMessages(self.context.config.namesrv_addr, self.pool)
        context, config = self.context, self.context.config
        bridge = self.bridge or EscapeBridge(config, self.pool, self.runtime.random)
        seed = f"{config.broker_name}#{config.broker_id}"
        relay = ReviveRelay(bridge, revive_topic(config.cluster_name), seed)
        return Popping(context, self.tables, self.reads, self.timers, foreign, relay)

    def _build_acting(self) -> ActingServices | None:
        if self.slave is None or not self.context.config.replication.enable_slave_acting_master:
            return None
        deliveries = None
        if self.bridge is not None:
            context, offsets = self.context, self.tables.offsets
            halves = EscapedHalves(context, offsets, self.reads, self.bridge)
            deliveries = EscapedDeliveries(
                context.config, self.delay, self._build_timers, halves, self.popping
            )
        return ActingServices(self.context, self.slave, self.metadata, self.held_pulls, deliveries)

    def _build_watch(self) -> MasterWatch | None:
        # A controller tells a slave who is master; name servers may know an older one.
        if self.slave is None or self.replica is not None:
            return None
        acting = None if self.acting is None else self.acting.master
        return MasterWatch(self.members, self.slave, acting)

    def _build_bridge(self) -> EscapeBridge | None:
        config = self.context.config
        if self.slave is None or not config.replication.enable_remote_escape:
            return None
        return EscapeBridge(config, self.pool, self.runtime.random)

    @property
    def _destination(self) -> Destination:
        """The place to which messages go that the broker delivers by itself."""
        if self.bridge is None:
            return Destination(self.context.commit, self.context.topics.delivery_queue)
        return Destination(self.bridge, delivery_queue_elsewhere)

    def _build_table_log(self) -> TableLog | None:
        keeper, tables = self.keeper, self.tables
        if keeper is None:
            return None
        return TableLog(self.context, tables.modes, tables.offsets, keeper.lagging)

    def _build_table_follower(self) -> TableFollower | None:
        if self.replica is None:
            return None
        follower = TableFollower(
            self.context,
            self.tables.modes,
            self.tables.offsets,
            self.queue_deletion,
            self.held_pulls.on_topic_deleted,
            ConfigFile(self.context.disk, CHANGES_FILE, parse_tables_file, restores=True),
        )
        self.tables.persist_last = follower.persist
        self.metadata.on_topic_deleted = follower.note_deleted
        if self.slave is not None:
            self.slave.on_confirmed = follower.wake
            self.arrival_listeners.append(lambda _: follower.wake())
        return follower

    def _build_timer_follower(self) -> TimerFollower | None:
        slave, timers, reader = self.slave, self.timers, self.context.store.reader
        if slave is None or self.replica is None:
            return None

        def is_copied(position: int) -> bool:
            return min(reader.visible_position, slave.confirmed) >= position

        follower = TimerFollower(self.context, timers.storage, timers.counts, is_copied)
        self.metadata.on_timer_progress = follower.offer
        self.metadata.on_timer_metrics = timers.counts.follow
        return follower

    async def recover_tables(self) -> None:
        """Apply the changes in the log of a new master; its own ones are copied from then on.

        Raises:
            StoreError: the queues of a deleted topic cannot be deleted.
            OSError: the log cannot be read.
        """
        tables, table_log, follower = self.tables, self.table_log, self.table_follower
        if table_log is None or follower is None:
            return
        await follower.recover()
        tables.topics.change_log = tables.groups.change_log = table_log
        tables.modes.change_log = table_log
        self.queue_deletion.order = table_log.log_deletion
        follower.create_missing_topics()

    def start_slave(self) -> None:
        """Start to copy the master's log, and to follow the changes and timers that it has."""
        slave = self.slave
        assert slave is not None, "the broker is a slave"
        slave.start()
        if self.table_follower is not None:
            self.table_follower.start(lambda: slave.confirmed)
        if self.timer_follower is not None:
            self.timer_follower.start()

    async def stop_tables(self) -> None:
        """Copy no changes of the tables any more, apply none, and follow no timers."""
        if self.table_log is not None:
            self.table_log.stop()
        if self.table_follower is not None:
            await self.table_follower.stop()
        if self.timer_follower is not None:
            await self.timer_follower.stop()

    def abandon_tables(self) -> None:
        """Do the same like a killed process."""
        if self.table_log is not None:
            self.table_log.stop()
        if self.table_follower is not None:
            self.table_follower.abandon()
        if self.timer_follower is not None:
            self.timer_follower.abandon()

    def ha_status(self) -> HARuntimeInfo:
        """Return the state of replication."""
        if self.slave is not None:
            return self.slave.status()
        if self.master is not None:
            return self.master.status()
        return HARuntimeInfo(True, self.context.store.reader.written_position)

    async def mark_acknowledged(self) -> None:
        """Mark durably what a replica in controller mode has acknowledged.

        Raises:
            OSError: the mark cannot be written.
        """
        if self.replica is not None:
            await self.context.offload(self.replica.mark, self.context.commit.stored_position)

    def learn_master(self, addresses: RegisterBrokerResponseHeader) -> None:
        """Let a slave copy from the master that a name server knows."""
        slave, ha_address = self.slave, addresses.ha_server_addr or ""
        assert slave is not None, "the broker is a slave"
        self.metadata.learn_address(addresses.master_addr or "")
        if self.replica is None:
            slave.learn_address(ha_address)
        else:  # the log has only the later changes of the tables
            self.metadata.on_copied = lambda: slave.learn_address(ha_address)

    def _on_config_changed(self, config: BrokerConfig) -> None:
        """Copy live options to the tables that hold them."""
        self.tables.topics.auto_create = config.auto_create_topic_enable
        self.tables.groups.auto_create = config.auto_create_subscription_group

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        """Notify the components that wait for messages of those that became visible."""
        for listener in self.arrival_listeners:
            listener(arrivals)
