"""LifeCycle cycles of a message from its send to its last delivery, as functions of a cluster.

Each life cycle sends one message and returns it as its consumers finally get it. The message is
described by `Sent`, so that a life cycle can add properties: a delay, or a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kourou.broker.timer.timer_config import TimerConfig
from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.transaction import TransactionState
from kourou.errors import QueryNotFoundError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.store.config import StoreConfig
from kourou.store.log.log_walk import LogPiece
from kourou.store.message_store import MessageStore
from kourou.store.tools.export import Selection, export_messages
from kourou.store.tools.import_messages import import_messages
from kourou.testing.cluster import Cluster
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual

BODY_MAX: Final = 40 * 1024
STORE: Final = StoreConfig(
    commitlog_segment_bytes=256 * 1024,
    consumequeue_file_bytes=20 * 100,
    batch_queue_file_bytes=46 * 100,
)
LONG_REASON: Final = "é" * 300
_TIMEOUT_S: Final = 3_600
_WINDOW_S: Final = 60


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Description of a message to send, and of the group that consumes it."""

    topic: str = "T"
    group: str = "consumers"
    body: bytes = b"body"
    tags: str | None = "tag"
    keys: tuple[str, ...] = ("key",)
    properties: Mapping[str, str] = field(default_factory=dict)
    lowers_limit: bool = False
    """The broker's `maxMessageSize` is lowered after the send."""

    def message(self, **more: Any) -> Message:
        """Return the message for a producer."""
        return Message(
            self.topic,
            self.body,
            tags=self.tags,
            keys=list(self.keys),
            properties=dict(self.properties),
            **more,
        )

    def as_received(self, message: MessageExt) -> Sent:
        """Return this description with the content of a delivered message.

        They are equal if the message is unchanged, apart from properties that were not sent.
        """
        received = message.properties
        return replace(
            self,
            body=message.body,
            tags=message.tags,
            keys=tuple(message.keys),
            properties={name: received[name] for name in self.properties if name in received},
        )


LifeCycle = Callable[[Cluster, Sent], Awaitable[MessageExt]]
Listener = Callable[[MessageExt], object]


def run_life_cycle(life_cycle: LifeCycle, sent: Sent, **options: Any) -> Sent:
    """Run a life cycle in a cluster of one broker; return the message as it was received."""

    async def main() -> Sent:
        timer = TimerConfig(timer_roll_window_slot=_WINDOW_S)
        own: dict[str, Any] = {"store": STORE, "timer": timer, "max_message_size_bytes": BODY_MAX}
        async with Cluster(seed=7, **own | options) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic(sent.topic, queues=2)
            return sent.as_received(await life_cycle(cluster, sent))

    return run_virtual(main())


async def consumed(
    cluster: Cluster, sent: Sent, send: Callable[[], Awaitable[object]], listener: Listener
) -> MessageExt:
    """Start a consumer, send, and return the first message for which the listener succeeds."""
    taken: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()

    def listen(message: MessageExt) -> None:
        listener(message)
        if not taken.done():
            taken.set_result(message)

    async with consumer_of(cluster, sent, listen):
        await send()
        async with asyncio.timeout(_TIMEOUT_S):
            return await taken


def consumer_of(
    cluster: Cluster, sent: Sent, listener: Listener, max_reconsume_times: int | None = None
) -> AbstractAsyncContextManager[PushConsumer]:
    """Return a consumer of the message's group, not started."""
    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=max_reconsume_times
    )
    consumer = cluster.push_consumer(sent.group, config)
    consumer.subscribe(sent.topic)
    consumer.listen(listener)
    return consumer


def acknowledge(_: MessageExt) -> None:
    """Acknowledge the message."""


def sending(cluster: Cluster, sent: Sent, **more: Any) -> Callable[[], Awaitable[None]]:
    """Return a function that sends the message."""

    async def send() -> None:
        async with cluster.producer() as producer:
            await producer.send(sent.message(**more))
        await lower_limit(cluster, sent)

    return send


async def lower_limit(cluster: Cluster, sent: Sent) -> None:
    """Lower the limit of bodies below the size sent, if `sent` asks for it."""
    if sent.lowers_limit:
        host, port = cluster.broker_address()
        async with cluster.admin() as admin:
            await admin.update_broker_config(f"{host}:{port}", {"maxMessageSize": "1"})


async def is_sent(cluster: Cluster, sent: Sent) -> MessageExt:
    return await consumed(cluster, sent, sending(cluster, sent), acknowledge)


async def is_sent_in_a_batch(cluster: Cluster, sent: Sent) -> MessageExt:
    async def send() -> None:
        async with cluster.producer() as producer:
            await producer.send_batch([sent.message()])

    return await consumed(cluster, sent, send, acknowledge)


async def waits_at_a_level(cluster: Cluster, sent: Sent) -> MessageExt:
    return await consumed(cluster, sent, sending(cluster, sent, delay_level=9), acknowledge)


async def is_scheduled(cluster: Cluster, sent: Sent) -> MessageExt:
    return await consumed(cluster, sent, sending(cluster, sent, delay_ms=90_500), acknowledge)


async def is_scheduled_beyond_the_window(cluster: Cluster, sent: Sent) -> MessageExt:
    received = await consumed(
        cluster, sent, sending(cluster, sent, delay_ms=4_500 * _WINDOW_S), acknowledge
    )
    assert int(received.properties["TIMER_ROLL_TIMES"]) > 1
    return received


async def is_committed(cluster: Cluster, sent: Sent) -> MessageExt:
    async def send() -> None:
        async with cluster.transaction_producer(_asked_for_nothing) as producer:
            transaction = await producer.begin_transaction(sent.message())
            await producer.end_transaction(transaction, TransactionState.COMMIT)

    return await consumed(cluster, sent, send, acknowledge)


def _asked_for_nothing(message: MessageExt) -> TransactionState:
    raise AssertionError(f"asked about {message.msg_id}")


async def is_committed_by_the_third_check(cluster: Cluster, sent: Sent) -> MessageExt:
    times = 0

    def check(message: MessageExt) -> TransactionState:
        nonlocal times
        assert sent.as_received(message) == sent
        times += 1
        return TransactionState.COMMIT if times == 3 else TransactionState.UNKNOWN

    async with cluster.transaction_producer(check) as producer:

        async def send() -> None:
            await producer.begin_transaction(sent.message())
            await lower_limit(cluster, sent)

        return await consumed(cluster, sent, send, acknowledge)


async def is_retried(cluster: Cluster, sent: Sent) -> MessageExt:
    def listener(message: MessageExt) -> None:
        if message.reconsume_times < 3:
            raise ValueError(LONG_REASON)

    return await consumed(cluster, sent, sending(cluster, sent), listener)


async def is_retried_after_delays(cluster: Cluster, sent: Sent) -> MessageExt:
    def listener(message: MessageExt) -> None:
        if message.reconsume_times < 3:
            raise RetryLater(LONG_REASON, delay_ms=90_500)

    return await consumed(cluster, sent, sending(cluster, sent, delay_ms=1_500), listener)


async def _dies(cluster: Cluster, sent: Sent) -> MessageExt:
    """Return the dead letter."""

    def listener(message: MessageExt) -> None:
        if message.reconsume_times < 2:
            raise RetryLater(delay_ms=2_500)
        raise DeadLetter(LONG_REASON)

    async with consumer_of(cluster, sent, listener):
        await sending(cluster, sent)()
        async with cluster.admin() as admin:
            found = await admin.dead_letters(sent.group)
            async with asyncio.timeout(_TIMEOUT_S):
                while not found:
                    await asyncio.sleep(1)
                    found = await admin.dead_letters(sent.group)
    [dead] = found
    assert dead.topic == sent.topic
    return dead.message


async def becomes_a_dead_letter(cluster: Cluster, sent: Sent) -> MessageExt:
    return await _dies(cluster, sent)


async def is_redriven_to_its_group(cluster: Cluster, sent: Sent) -> MessageExt:
    return await _redriven(cluster, sent, to_topic=False)


async def is_redriven_to_its_topic(cluster: Cluster, sent: Sent) -> MessageExt:
    return await _redriven(cluster, sent, to_topic=True)


async def _redriven(cluster: Cluster, sent: Sent, *, to_topic: bool) -> MessageExt:
    await _dies(cluster, sent)

    async def redrive() -> None:
        async with cluster.admin() as admin:
            done = await admin.redrive_all(sent.group, to_topic=to_topic)
            assert (done.sent, dict(done.left)) == (1, {})
            done = await admin.redrive_all(sent.group, to_topic=to_topic)
            assert (done.sent, done.skipped) == (0, 0)

    failed: set[int] = set()

    def listener(message: MessageExt) -> None:
        if not failed:
            failed.add(message.reconsume_times)
            raise ValueError(LONG_REASON)

    return await consumed(cluster, sent, redrive, listener)


async def is_found(cluster: Cluster, sent: Sent) -> MessageExt:
    """Find the message by key, tag, unique id and offset message id."""
    async with cluster.producer() as producer, cluster.admin() as admin:
        receipt = await producer.send(sent.message())
        found: list[MessageExt] = [await admin.message_by_id(receipt.offset_msg_id)]
        async with asyncio.timeout(60):
            while len(found) == 1:
                try:
                    found.append(await admin.message_by_unique_key(sent.topic, receipt.msg_id))
                except QueryNotFoundError:
                    await asyncio.sleep(1)
        for key in sent.keys:
            found += await admin.messages_by_key(sent.topic, key)
        if sent.tags is not None:
            found += await admin.messages_by_tag(sent.topic, sent.tags)
    for message in found:
        assert sent.as_received(message) == sent
    assert len(found) == 2 + len(sent.keys) + (sent.tags is not None)
    return found[0]


async def is_exported_and_imported(cluster: Cluster, sent: Sent) -> MessageExt:
    """Stop the broker, export and import its store, and start it again."""
    await sending(cluster, sent)()
    await cluster.stop_broker()
    disk = cluster.disk()
    rows = [one for one in export_messages(disk, Selection()) if not isinstance(one, LogPiece)]
    store = SimDisk()
    MessageStore.open(store, STORE, 1, pid=1).close(1)
    assert import_messages(store, rows, 1, pid=1).messages == 1
    again = [one for one in export_messages(store, Selection()) if not isinstance(one, LogPiece)]
    assert [row["properties"] for row in again] == [dict(sent.properties)]
    await cluster.restart_broker()
    return await consumed(cluster, sent, _nothing, acknowledge)


async def _nothing() -> None:
    """Send nothing: the message is already stored."""


LIFE_CYCLES: Final[Mapping[str, LifeCycle]] = {
    life_cycle.__name__.replace("_", " "): life_cycle
    for life_cycle in (
        is_sent,
        is_sent_in_a_batch,
        waits_at_a_level,
        is_scheduled,
        is_scheduled_beyond_the_window,
        is_committed,
        is_committed_by_the_third_check,
        is_retried,
        is_retried_after_delays,
        becomes_a_dead_letter,
        is_redriven_to_its_group,
        is_redriven_to_its_topic,
        is_found,
        is_exported_and_imported,
    )
}
