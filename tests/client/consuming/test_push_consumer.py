"""Guarantees of a push consumer to its listener, with real brokers on a simulated network."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from kourou.client.calls_send import Outgoing
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import InvalidParameterError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import COMPRESSED, COMPRESSION_LZ4
from kourou.model.topic import dlq_topic
from kourou.protocol.compression import CompressionType, compress
from kourou.store.config import StoreConfig
from kourou.testing.inspection import held_queues_of, sender_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

BODIES = [b"%d" % number for number in range(30)]


def topic_queues(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


def test_every_message_is_delivered_once_and_committed_at_the_end() -> None:
    async def main() -> None:
        async with recording() as w:
            await w.send(*BODIES)
            async with w.consumer():
                await w.until_received(*BODIES)
            assert Counter(w.received) == Counter(BODIES)
            assert await w.committed() == len(BODIES)

            async with w.consumer():
                await asyncio.sleep(10)
            assert len(w.received) == len(BODIES), "committed messages are not delivered again"

    run_virtual(main())


def test_offsets_are_committed_every_five_seconds() -> None:
    async def main() -> None:
        async with recording() as w, w.consumer() as consumer:
            await w.send(*BODIES)
            await w.until_received(*BODIES)
            await asyncio.sleep(5.5)
            consumer.abort()  # commits nothing
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_messages_sent_after_the_start_are_delivered_at_once() -> None:
    async def main() -> None:
        async with recording() as w:
            where = ConsumeFromWhere.LAST_OFFSET
            async with w.consumer(consume_from_where=where) as consumer:
                assert len([queue for queue in consumer.queues if queue.topic == TOPIC]) == 4
                await w.send(b"now")
                await w.until_received(b"now", timeout_s=0.1)

    run_virtual(main())


def test_a_failed_message_is_redelivered_after_10_30_and_60_seconds() -> None:
    async def main() -> None:
        times = []

        def fail_three_times(message: MessageExt) -> None:
            times.append((message.reconsume_times, asyncio.get_running_loop().time()))
            if message.reconsume_times < 3:
                raise ValueError("not yet")

        async with recording() as w:
            await w.send(b"pay")
            async with w.consumer(fail_three_times):
                await w.until_received(*[b"pay"] * 4, timeout_s=200)
                await asyncio.sleep(300)
            assert w.received == [b"pay"] * 4
            assert [reconsumed for reconsumed, _ in times] == [0, 1, 2, 3]
            waits = [later[1] - earlier[1] for earlier, later in pairwise(times)]
            assert waits == pytest.approx([10, 30, 60], abs=2.5)
            assert {message.topic for message in w.deliveries} == {TOPIC}
            assert len({message.msg_id for message in w.deliveries}) == 1
            assert await w.committed() == 1

    run_virtual(main())


def test_a_message_that_always_fails_becomes_a_dead_letter() -> None:
    async def main() -> None:
        def fail(_: MessageExt) -> None:
            raise ValueError("never")

        async with recording() as w:
            await w.send(b"bad")
            async with w.consumer(fail, max_reconsume_times=2):
                await asyncio.sleep(600)
            assert w.received == [b"bad"] * 3
            async with w.cluster.pull_consumer() as reader:
                [queue] = await reader.fetch_subscribe_message_queues(dlq_topic("consumers"))
                [dead] = (await reader.pull(queue, 0)).messages
            assert (dead.body, dead.msg_id) == (b"bad", w.deliveries[0].msg_id)

    run_virtual(main())


def test_a_listener_that_is_cancelled_from_inside_has_failed() -> None:
    async def main() -> None:
        async def cancel_once(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                raise asyncio.CancelledError

        async with recording() as w:
            await w.send(b"x", b"y")
            async with w.consumer(cancel_once, consume_threads=1):
                await w.until_received(b"x", b"y", b"x", b"y")
                assert sorted(w.received) == [b"x", b"x", b"y", b"y"]

    run_virtual(main())


def test_a_message_that_no_broker_accepts_is_redelivered_from_memory() -> None:
    async def main() -> None:
        async with recording() as w:
            address = w.cluster.broker_address()

            def fail_once(message: MessageExt) -> None:
                if message.reconsume_times == 0:
                    w.cluster.network.cut(address)
                    raise ValueError("and the broker is away")

            await w.send(b"x")
            async with w.consumer(fail_once):
                await w.until_received(b"x")
                await w.until_received(b"x", b"x", timeout_s=6)
                assert w.deliveries[0] is w.deliveries[1]
                w.cluster.network.heal(address)
                await asyncio.sleep(5)
            assert await w.committed() == 1

    run_virtual(main())


def test_an_overdue_message_is_redelivered() -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def hang_once(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                await released.wait()

        async with recording() as w:
            await w.send(b"x")
            async with w.consumer(hang_once, consume_timeout_ms=60_000):
                await w.until_received(b"x", b"x", timeout_s=140)
                await asyncio.sleep(6)
                assert await w.committed() == 1
                released.set()
                await asyncio.sleep(300)
                assert w.received == [b"x", b"x"]

    run_virtual(main())


def test_a_stuck_message_blocks_the_commit_and_is_redelivered_after_a_crash() -> None:
    async def main() -> None:
        async def hang_on_ten(message: MessageExt) -> None:
            if message.body == b"10":
                await asyncio.Event().wait()

        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = w.consumer(hang_on_ten)
            await consumer.start()
            await w.until_received(*BODIES)
            await asyncio.sleep(6)
            assert await w.committed() == 10
            consumer.abort()

            w.received.clear()
            async with w.consumer():
                await w.until_received(*BODIES[10:])
            assert Counter(w.received) == Counter(BODIES[10:])

    run_virtual(main())


def test_a_broker_crash_during_sends_loses_nothing() -> None:
    async def main() -> None:
        async with recording() as w, w.consumer(), w.cluster.producer() as producer:

            async def keep_sending() -> None:
                for body in BODIES:
                    await producer.send(Message(TOPIC, body))
                    await asyncio.sleep(0.1)

            sending = asyncio.create_task(keep_sending())
            await asyncio.sleep(1)
            await w.cluster.crash_broker()
            await asyncio.sleep(1)
            await w.cluster.restart_broker()
            await sending
            await w.until_received(*BODIES)
            await asyncio.sleep(6)
            assert await w.committed() >= len(BODIES)

    run_virtual(main())


@pytest.mark.parametrize(
    ("options", "held_max"),
    [
        ({"pull_threshold_count": 40}, 40 + 32),
        ({"pull_threshold_size_bytes": 40 * 100}, 40 + 32),
        ({"consume_max_span": 50}, 50 + 33),
    ],
)
def test_a_queue_is_not_pulled_while_too_much_of_it_is_held(
    options: dict[str, Any], held_max: int
) -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def wait(message: MessageExt) -> None:
            # The first message stays held: those done after it do not reduce the span.
            if message.queue_offset == 0 or "consume_max_span" not in options:
                await released.wait()

        async with recording(queues=1) as w:
            bodies = [b"%0100d" % number for number in range(200)]
            await w.send(*bodies)
            async with w.consumer(wait, **options) as consumer:
                await asyncio.sleep(2)
                queues = held_queues_of(consumer).process_queues
                [held] = [one for one in queues if one.queue.topic == TOPIC]
                reached = held.span + 1
                assert held_max - 32 <= reached <= held_max
                await asyncio.sleep(10)
                assert held.span + 1 == reached
                released.set()
                await w.until_received(*bodies)
            assert await w.committed() == 200

    run_virtual(main())


def test_a_new_group_starts_at_the_end_the_start_or_a_time() -> None:
    async def main() -> None:
        # So little counts as "in memory" that the queue is no longer young.
        store = StoreConfig(
            commitlog_segment_bytes=64 * 1024, consumequeue_file_bytes=2000, resident_bytes=1000
        )
        async with recording(queues=1, store=store) as w:
            await w.send(*[b"old"] * 30)
            await asyncio.sleep(60)
            noon_ms = w.cluster.runtime.clock.now_ms()
            await asyncio.sleep(60)
            await w.send(b"recent")

            got: dict[ConsumeFromWhere, list[bytes]] = {}
            for where in (
                ConsumeFromWhere.FIRST_OFFSET,
                ConsumeFromWhere.TIMESTAMP,
                ConsumeFromWhere.LAST_OFFSET,
            ):
                w.received.clear()
                async with w.consumer(
                    group=where.name, consume_from_where=where, consume_timestamp_ms=noon_ms
                ):
                    await asyncio.sleep(5)
                    await w.send(b"new")
                    await w.until_received(b"new")
                got[where] = list(w.received)

            assert Counter(got[ConsumeFromWhere.FIRST_OFFSET]) == Counter(
                {b"old": 30, b"recent": 1, b"new": 1}
            )
            assert got[ConsumeFromWhere.TIMESTAMP] == [b"recent", b"new", b"new"]
            assert got[ConsumeFromWhere.LAST_OFFSET] == [b"new"]

    run_virtual(main())


def test_a_young_topic_is_consumed_from_its_start_even_with_latest() -> None:
    async def main() -> None:
        async with recording() as w:
            await w.send(*BODIES)
            async with w.consumer(consume_from_where=ConsumeFromWhere.LAST_OFFSET):
                await w.until_received(*BODIES)
                assert Counter(w.received) == Counter(BODIES)

    run_virtual(main())


def test_other_tags_with_an_equal_hash_are_not_delivered() -> None:
    async def main() -> None:
        async with recording() as w:
            # Java's hash of both tags is 2112.
            await w.send(b"1", b"2", tags="Aa")
            await w.send(b"no", tags="BB")
            await w.send(b"no", tags="other")
            await w.send(b"3", tags="second")
            async with w.consumer(tags="Aa || second"):
                await w.until_received(b"1", b"2", b"3")
                await asyncio.sleep(6)
                assert sorted(w.received) == [b"1", b"2", b"3"]
                assert await w.committed() == 5, "filtered messages are done, too"

    run_virtual(main())


def test_an_offset_beyond_the_end_is_not_committed_and_skips_nothing() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with w.cluster.pull_consumer("consumers") as reader:
                await reader.pull(MessageQueue(TOPIC, "broker-0", 0), 0)
                with pytest.raises(InvalidParameterError, match="end 30"):
                    await reader.commit(MessageQueue(TOPIC, "broker-0", 0), 10_000)
            async with w.consumer():
                await w.send(b"new")
                await w.until_received(*BODIES, b"new")
            assert await w.committed() == 31

    run_virtual(main())


def test_a_message_without_its_codec_stops_only_its_queue(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.producer() as producer:
            lz4 = Outgoing(
                TOPIC,
                ("id",),
                compress(b"id", kind=CompressionType.LZ4),
                "",
                0,
                COMPRESSED | COMPRESSION_LZ4,
            )
            await sender_of(producer).send(lz4, None, MessageQueue(TOPIC, "broker-0", 0))
            monkeypatch.setitem(sys.modules, "lz4.frame", None)
            async with w.consumer() as consumer:
                for body in BODIES:
                    queue = MessageQueue(TOPIC, "broker-0", 1)
                    await producer.send(Message(TOPIC, body), queue=queue)
                await w.until_received(*BODIES)
                await asyncio.sleep(300)
                assert len(w.received) == len(BODIES)
                assert topic_queues(consumer) == [0, 1]
                [problem] = consumer.health().problems
                assert "lz4" in problem.lower()
        entries = [one.getMessage() for one in caplog.records if "pull.unreadable" in one.msg]
        assert 5 <= len(entries) <= 12
        assert "lz4" in entries[0].lower()

    run_virtual(main())
