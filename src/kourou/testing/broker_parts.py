"""The parts of a broker that serve consumers, assembled without a network or a port.

For tests of single handlers: requests come from a `FakePeer`, which receives the answers.
`kourou.testing.cluster` runs whole brokers on a network in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from kourou.broker.administration.admin_handlers import build_admin_handlers
from kourou.broker.client_handlers import ClientHandlers, ConsumerIdsNotifier
from kourou.broker.clients import Clients, Member, Peer
from kourou.broker.components import Components
from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.offset_handlers import OffsetHandlers
from kourou.broker.consuming.retry import SendBackHandler
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
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.placement import choose_placement
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.broker.writing.retention import Retention
from kourou.errors import RequestTimeoutError
from kourou.filter.tags import parse_tags
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.sysflag import PULL_SUBSCRIPTION
from kourou.model.topic import TopicConfig
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.protocol.record.encode import RecordDraft
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.dispatch import Handler
from kourou.remoting.steady_time import steady_ms
from kourou.store.config import StoreConfig
from kourou.store.message_store import AppendedRecord, Arrival, MessageStore
from kourou.store.state.config_file import ConfigFile
from kourou.store.tools.check import check_store
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.runtime import sim_runtime

PRODUCER = ("10.0.0.7", 40_000)
BROKER = ("10.0.0.1", 10911)


def small_config(**options: object) -> BrokerConfig:
    """Return the config of a broker with small files, which `check_store` reads quickly."""
    small: dict[str, Any] = {
        "store": StoreConfig(
            commitlog_segment_bytes=1 << 20,
            consumequeue_file_bytes=20 * 1000,
            batch_queue_file_bytes=46 * 100,
        ),
        "max_message_size_bytes": 1 << 18,
    }
    return BrokerConfig(**small | options)


class ColdDisk(SimDisk):
    """A disk without a page cache: each read has to wait for the device."""

    def read_resident(self, name: str, offset: int, size: int) -> bytes | None:  # noqa: ARG002
        return None


def run_with_parts(
    test: Callable[[BrokerParts], Coroutine[Any, Any, None]],
    disk: SimDisk | None = None,
    *,
    config: BrokerConfig | None = None,
    later_ms: int = 0,
    is_delivering: bool = False,
) -> SimDisk:
    """Run `test` with the parts of a broker in virtual time, stop them cleanly, check the store.

    Args:
        test: gets the parts.
        disk: None for a new one.
        config: None for `small_config()`.
        later_ms: wall-clock time at the start, in ms since `EPOCH_MS`.
        is_delivering: whether delayed and scheduled messages are delivered; creates a topic T.

    Returns:
        The disk, for a restart.
    """
    the_disk = disk or SimDisk()

    async def main() -> None:
        parts = BrokerParts(the_disk, config=config, later_ms=later_ms)
        if is_delivering:
            await parts.start_deliveries()
        try:
            await test(parts)
        finally:
            await parts.stop()

    run_virtual(main())
    findings = check_store(the_disk).findings
    assert not findings, findings
    return the_disk


class BrokerParts:
    """One broker's tables, store and handlers, on the running loop.

    Attributes:
        arrivals: all messages that became visible, oldest first.
        answer_client: answers the broker's requests to a client; while it is None, all of these
            time out.
    """

    def __init__(
        self,
        disk: SimDisk,
        *,
        seed: int = 0,
        config: BrokerConfig | None = None,
        later_ms: int = 0,
    ) -> None:
        """Open the store and load the tables.

        Args:
            disk: holds the store.
            seed: of random choices and of the duration of syncs.
            config: None for `small_config()`.
            later_ms: wall-clock time in ms since `EPOCH_MS`, for a restart.
        """
        self.config = config = config or small_config()
        self.live = LiveConfig(config, EPOCH_MS)
        self.disk = disk
        self.runtime = runtime = sim_runtime(seed, epoch_ms=EPOCH_MS + later_ms)
        self.clock = runtime.clock
        self.arrivals: list[AppendedRecord] = []
        self.answer_client: Callable[[Peer, RemotingCommand], RemotingCommand] | None = None
        self.store = MessageStore.open(disk, config.store_config, self.clock.now_ms(), pid=1)
        loop = asyncio.get_running_loop()
        self.flusher = SimFlusher(loop, seed)
        self.commit = GroupCommit(self.store, self.flusher, loop, config, self._on_arrivals)
        self.queue_deletion = QueueDeletion(self.commit, runtime.offload)
        self.age_clock = AgeClock(
            self.live,
            self.store,
            self.clock,
            ConfigFile(disk, CLOCK_FILE, parse_age_clock),
            runtime.offload,
        )
        self.retention = Retention(
            self.live,
            self.store,
            disk,
            deletion_lock=self.queue_deletion.lock,
            offload=runtime.offload,
            clock=self.clock,
            age_clock=self.age_clock,
        )
        self.later = DeferredReplies()
        self.stats = BrokerStats(config.cluster_name, steady_ms())
        self.tables = Tables(config, disk, runtime, self.store)
        self.topics = self.tables.topics
        self.groups = self.tables.groups
        self.offsets = self.tables.offsets
        self.clients = Clients(ConsumerIdsNotifier(self.groups))
        self.queue_locks = self.tables.locks.locks
        self.clients.on_emptied = self.tables.filters.unregister
        self._build_handlers()
        self._build_log_readers()
        # `self` has those attributes of `Components` that the admin handlers use.
        self.admin = build_admin_handlers(cast(Components, self), self._call_client)

    def _build_handlers(self) -> None:
        """Build the handlers that use the tables only."""
        bit_maps = FilterBitMaps(self.live, self.tables.filters, self.store)
        self.store.writer.set_bit_map_function(bit_maps)
        config = self.config
        self.held_pulls = HeldPulls(self.live)
        self.subscriptions = Subscriptions(
            self.clients, self.topics, self.tables.filters, self.held_pulls, self._call_client
        )
        self.client_handlers = ClientHandlers(
            self.live, self.clients, self.groups, self.topics, self.subscriptions, self.later
        )
        self.offset_handlers = OffsetHandlers(
            groups=self.groups,
            topics=self.topics,
            offsets=self.offsets,
            store=self.store.reader,
            resident_bytes=config.store.resident_bytes,
        )

    def _build_log_readers(self) -> None:
        config, runtime, filters = self.config, self.runtime, self.tables.filters
        self.reads = VerifiedReads(self.store, self.live, runtime.offload)
        self.pulls = PullHandler(
            self.live,
            checks=PullChecks(self.live, self.topics, self.groups, self.clients, filters),
            offsets=self.offsets,
            store=self.store,
            reads=self.reads,
            held=self.held_pulls,
            ask_member=self.subscriptions.request_from_member,
            later=self.later,
            stats=self.stats,
        )
        self.send_backs = SendBackHandler(
            config=self.live,
            topics=self.topics,
            groups=self.groups,
            store=self.store,
            commit=self.commit,
            later=self.later,
            stats=self.stats,
            offload=runtime.offload,
            clock=self.clock,
            random=runtime.random,
            store_host=BROKER,
        )
        self.delay = DelayDelivery(
            store=self.store,
            topics=self.topics,
            commit=self.commit,
            file=ConfigFile(self.disk, DELAY_FILE, parse_delay_offsets),
            stats=self.stats,
            offload=runtime.offload,
            reads=self.reads,
            clock=self.clock,
            delay_levels_ms=config.delay_levels_ms,
            disk=self.disk,
            segment_bytes=config.store.commitlog_segment_bytes,
        )
        self.timers = build_timers(
            self.disk, runtime, store=self.store, topics=self.topics, commit=self.commit,
            config=self.live, stats=self.stats,
        )  # fmt: skip
        self.transactions = Transactions(
            config=self.live, tables=self.tables, store=self.store, commit=self.commit,
            reads=self.reads, clients=self.clients, stats=self.stats, later=self.later,
            runtime=runtime, age_clock=self.age_clock, host=BROKER,
            file=ConfigFile(self.disk, TRANSACTIONS_FILE, parse_transaction_counts),
        )  # fmt: skip

    async def start_deliveries(self) -> None:
        """Start to deliver delayed and scheduled messages; creates topic T, which is not saved."""
        self.topics.ensure(TopicConfig("T", 4, 4))
        self.delay.start()
        await self.timers.start()

    async def ask(
        self, handler: Handler, header: object | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return the answer to a request, after waiting for the disk and for clients."""
        peer = FakePeer()
        peer.ask(handler, peer.request(0, header, body))
        await self.later.close()
        return peer.sent[0]

    def connect(
        self,
        client_id: str,
        group: str = "g",
        *,
        topics: Sequence[str] = ("T",),
        language: LanguageCode = LanguageCode.JAVA,
        version: int = 513,
    ) -> FakePeer:
        """Connect a consumer of the group; return its connection."""
        self.groups.get_or_create(group)
        peer = FakePeer(50_000 + len(client_id))
        self.clients.register_consumer(
            Member(client_id, cast(Peer, peer), language, version, steady_ms()),
            ConsumerData(group, subscriptions=[parse_tags(topic, "*", 1) for topic in topics]),
        )
        return peer

    async def _call_client(
        self, peer: Peer, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Send a request to a client, like `Connection.request`."""
        if self.answer_client is None:
            await asyncio.sleep(timeout_s)
            raise RequestTimeoutError(f"no answer within {timeout_s} s")
        return self.answer_client(peer, command)

    def pull(
        self,
        peer: FakePeer,
        *,
        flags: int = PULL_SUBSCRIPTION,
        is_oneway: bool = False,
        **fields: object,
    ) -> RemotingCommand | None:
        """Return the answer to a pull of queue 0 of topic T by group g; None if it is held.

        Args:
            peer: the client that pulls.
            flags: PULL_* bits; by default the pull contains its own subscription.
            is_oneway: whether the request is one-way.
            fields: replaces fields of the `PullMessageRequestHeader`.
        """
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": "T",
            "queue_id": 0,
            "queue_offset": 0,
            "max_msg_nums": 32,
            "sys_flag": flags,
            "commit_offset": 0,
            "suspend_timeout_millis": 15_000,
            "sub_version": 0,
            "subscription": "*" if flags & PULL_SUBSCRIPTION else None,
            "expression_type": "TAG",
        }
        header = PullMessageRequestHeader(**values | fields)
        command = peer.request(RequestCode.PULL_MESSAGE, header, oneway=is_oneway)
        return peer.ask(self.pulls.on_pull_message, command)

    def draft(
        self,
        body: bytes = b"body",
        *,
        topic: str = "T",
        queue_id: int = 0,
        tags: str = "",
        delay_level: int = 0,
        properties: dict[str, str] | None = None,
    ) -> RecordDraft:
        """Return the record that a send would store now; creates its topic if it is missing."""
        if self.topics.get(topic) is None:
            self.topics.put(TopicConfig(topic, 4, 4))
        stored = dict(properties or {})
        if tags:
            stored[names.TAGS] = tags
        if delay_level:
            stored[names.DELAY] = str(delay_level)
        now_ms = self.clock.now_ms()
        placed = choose_placement(topic, queue_id, stored, len(self.config.delay_levels_ms))
        return RecordDraft(
            topic=placed.topic.encode(),
            queue_id=placed.queue_id,
            flag=0,
            sys_flag=0,
            born_at_ms=now_ms,
            born_host=PRODUCER,
            store_host=BROKER,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=body,
            properties=encode_properties(stored),
        )

    async def store_messages(self, drafts: Sequence[RecordDraft]) -> PutResult:
        """Store the messages; return their positions once they are acknowledged."""
        result = await self.commit.put_and_wait(drafts, self.clock.now_ms())
        assert result.status is PutStatus.OK, result
        return result

    async def stop(self) -> None:
        """Stop cleanly, in the same order as a broker, and save all tables."""
        self.subscriptions.close()
        self.held_pulls.close()
        await self.delay.stop()
        await self.timers.stop()
        self.transactions.stop()
        await self.later.close()
        await self.commit.close()
        await self.tables.persist()
        await self.tables.filters.persist()
        await self.delay.persist()
        await self.timers.storage.close()
        await self.transactions.persist_counts()
        self.store.close(self.clock.now_ms())
        self.flusher.close()

    def abandon(self) -> None:
        """Stop like a killed process: nothing more is written."""
        self.subscriptions.close()
        self.held_pulls.close()
        self.delay.abandon()
        self.timers.abandon()
        self.transactions.abandon()
        self.later.abandon()
        self.commit.abandon()
        self.flusher.close()
        self.store.abandon()

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.arrivals += arrival.records()
        self.held_pulls.on_arrivals(arrivals)
        self.delay.on_arrivals(arrivals)
        self.timers.on_arrivals()
