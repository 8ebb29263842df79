"""A broker without a network or a port, in one event loop, for tests of single handlers.

Its components, handlers and fast paths are the real ones; disk, flusher, clock and randomness are
simulated. Requests come from a `FakePeer`, which receives the answers. `kourou.testing.cluster`
runs whole brokers on a network in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, cast

from kourou.broker.clients import Member, Peer
from kourou.broker.components import Components
from kourou.broker.config import BrokerConfig
from kourou.broker.wiring import build_fast_paths, build_handlers
from kourou.broker.writing.placement import choose_placement
from kourou.broker.writing.put import PutResult, PutStatus
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
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import format_address
from kourou.remoting.runtime import Offload
from kourou.remoting.steady_time import steady_ms
from kourou.store.config import StoreConfig
from kourou.store.message_store import AppendedRecord, Arrival, MessageStore
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


def run_with_broker(
    test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]],
    disk: SimDisk | None = None,
    *,
    config: BrokerConfig | None = None,
    later_ms: int = 0,
    is_delivering: bool = False,
    offload: Offload | None = None,
) -> SimDisk:
    """Run `test` with a broker in virtual time, stop it cleanly, check the store.

    Args:
        test: gets the broker.
        disk: None for a new one.
        config: None for `small_config()`.
        later_ms: wall-clock time at the start, in ms since `EPOCH_MS`.
        is_delivering: whether delayed and scheduled messages are delivered; creates a topic T.
        offload: see `SimulatedBroker`.

    Returns:
        The disk, for a restart.
    """
    the_disk = disk or SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(the_disk, config=config, later_ms=later_ms, offload=offload)
        if is_delivering:
            await broker.start_deliveries()
        try:
            await test(broker)
        finally:
            await broker.stop()

    run_virtual(main())
    findings = check_store(the_disk).findings
    assert not findings, findings
    return the_disk


class SimulatedBroker:
    """One broker on the running loop; nothing is delivered before `start_deliveries`.

    Attributes:
        components, handlers, fast_paths: those of a real broker, without periodic tasks.
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
        offload: Offload | None = None,
        boot_id: str | None = None,
    ) -> None:
        """Open the store and load the tables.

        Args:
            disk: holds the store.
            seed: of random choices and of the duration of syncs.
            config: None for `small_config()`.
            later_ms: wall-clock time in ms since `EPOCH_MS`, for a restart.
            offload: runs calls that may wait for the device; None: as in `sim_runtime`.
            boot_id: id of the time since the machine started, which lasts as long as the loop.
        """
        config = config or small_config()
        if config.advertise is None:
            config = replace(config, advertise=format_address(BROKER))
        self.config = config
        self.disk = disk
        runtime = sim_runtime(seed, epoch_ms=EPOCH_MS + later_ms)
        runtime = replace(runtime, boot_id=lambda: boot_id)
        if offload is not None:
            runtime = replace(runtime, offload=offload)
        self.runtime = runtime
        self.arrivals: list[AppendedRecord] = []
        self.answer_client: Callable[[Peer, RemotingCommand], RemotingCommand] | None = None
        store = MessageStore.open(disk, config.store_config, runtime.clock.now_ms(), pid=1)
        self.flusher = SimFlusher(asyncio.get_running_loop(), seed)
        self.components = components = Components(
            config,
            disk=disk,
            runtime=runtime,
            flusher=self.flusher,
            store=store,
            call_client=self._call_client,
        )
        components.arrival_listeners.insert(0, self._note_arrivals)
        self.handlers = handlers = build_handlers(components)
        self.fast_paths = build_fast_paths(components)
        # Attributes that many tests use.
        context = components.context
        self.live_config, self.clock, self.store = context.live_config, context.clock, store
        self.commit, self.stats, self.later = context.commit, context.stats, context.later
        self.topics, self.groups, self.clients = context.topics, context.groups, context.clients
        self.tables, self.offsets = components.tables, components.tables.offsets
        self.queue_locks, self.held_pulls = components.queue_locks, components.held_pulls
        self.queue_deletion, self.retention = components.queue_deletion, components.retention
        self.reads, self.pulls = components.reads, components.pulls
        self.delay, self.timers = components.delay, components.timers
        self.transactions, self.admin = components.transactions, handlers.admin
        self.client_handlers, self.offset_handlers = handlers.clients, handlers.offsets
        self.send_backs = handlers.send_backs

    async def start_deliveries(self, *, timers_later: bool = False) -> None:
        """Start to deliver delayed and scheduled messages; creates topic T, which is not saved.

        With `timers_later`, the timer's files are opened in the background, as by a new master.
        """
        popping = self.components.popping
        self.topics.ensure(TopicConfig("T", 4, 4))
        self.delay.start()
        if not timers_later:
            await self.timers.start()
        await popping.recover()
        popping.start()
        if timers_later:
            self.timers.start_later(popping.recovery.note_early_acks)

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
        self.components.subscriptions.close()
        self.held_pulls.close()
        await self.components.popping.stop()
        await self.delay.stop()
        await self.timers.stop()
        await self.components.index.stop()
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
        self.components.subscriptions.close()
        self.held_pulls.close()
        self.components.popping.abandon()
        self.delay.abandon()
        self.timers.abandon()
        self.transactions.abandon()
        self.components.index.abandon()
        self.later.abandon()
        self.tables.order_infos.abandon()
        self.commit.abandon()
        self.flusher.close()
        self.store.abandon()

    def _note_arrivals(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.arrivals += arrival.records()
