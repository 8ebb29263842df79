"""Limits, pauses and threads of a consumer, changed while it consumes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.workers import Turns
from kourou.client.consuming.pulling.held_queues import PullFlow, topic_share
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.client.user_functions import UserThreads
from kourou.errors import ClosedError, ConfigError, UsageError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

BODIES = [b"%d" % number for number in range(40)]
QUEUES = [MessageQueue(TOPIC, "broker-0", number) for number in range(4)]


class Slow:
    """A listener that waits until it is released, and counts its calls."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.gate = asyncio.Semaphore(0)

    async def __call__(self, _: MessageExt) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.acquire()
        self.running -= 1

    def let(self, count: int) -> None:
        for _ in range(count):
            self.gate.release()


def held(consumer: Any) -> int:
    return int(consumer.health().held_messages)


def test_a_paused_consumer_pulls_nothing_and_stays_a_member() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer()
            other = w.consumer(instance_name="other")
            consumer.pause()
            async with consumer:
                await w.send(*BODIES[:8])
                await asyncio.sleep(60)
                assert w.received == []
                assert len(consumer.queues) == 5, "including the retry queue"
                async with other:
                    await w.until(lambda: len(w.received) > 0)
                    await asyncio.sleep(30)
                    assert 0 < len(w.received) < 8, "the other member has only its assigned queues"
                    consumer.resume()
                    await w.until_received(*BODIES[:8], timeout_s=1)

    run_virtual(main())


def test_single_queues_are_paused_and_resumed_independently() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer()
            consumer.pause(QUEUES[0], QUEUES[1])
            async with consumer:
                await w.send(*BODIES)
                await asyncio.sleep(30)
                assert {message.queue_id for message in w.deliveries} == {2, 3}
                assert consumer.is_paused(QUEUES[0])
                consumer.resume(QUEUES[0])
                await w.until(lambda: 0 in {message.queue_id for message in w.deliveries})
                await asyncio.sleep(30)
                assert {message.queue_id for message in w.deliveries} == {0, 2, 3}
                consumer.resume()
                await w.until_received(*BODIES)
                assert sorted(w.received) == sorted(BODIES)

    run_virtual(main())


def test_messages_of_a_pull_pending_at_pause_are_consumed() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.consumer() as consumer:
            await asyncio.sleep(1)  # the broker holds its pull
            consumer.pause()
            await w.send(b"1")
            await w.until_received(b"1")
            await w.send(b"2")
            await asyncio.sleep(60)
            assert w.received == [b"1"]

    run_virtual(main())


def test_a_topic_s_limit_is_divided_among_the_member_s_queues() -> None:
    async def main() -> None:
        async with recording(queues=4) as w:
            slow = Slow()
            await w.send(*BODIES * 10)
            consumer = w.consumer(
                slow, consume_threads=1, pull_batch_size=1, pull_threshold_topic_count=40
            )
            async with consumer:
                await asyncio.sleep(30)
                assert held(consumer) == 4 * 11, "above 10 a queue is not pulled"
                async with w.consumer(slow, consume_threads=1, instance_name="zz") as other:
                    await w.until(lambda: len(consumer.queues) < 5)
                    await asyncio.sleep(30)
                    assert held(consumer) == 2 * 21
                    other.abort()
                slow.let(10_000)

    run_virtual(main())


def test_limits_and_intervals_apply_from_the_next_pull_on() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            slow = Slow()
            await w.send(*BODIES)
            consumer = w.consumer(
                slow, consume_threads=1, pull_batch_size=1, pull_threshold_count=4
            )
            async with consumer:
                await asyncio.sleep(5)
                assert held(consumer) == 5
                consumer.reconfigure(pull_threshold_count=9)
                await asyncio.sleep(5)
                assert held(consumer) == 10
                consumer.reconfigure(pull_threshold_count=1000, pull_interval_ms=1000)
                await asyncio.sleep(4.5)
                assert held(consumer) in (14, 15), "one a second"
                consumer.reconfigure(pull_interval_ms=0, pull_batch_size=32)
                await asyncio.sleep(2)
                assert held(consumer) == len(BODIES)
                slow.let(10_000)

    run_virtual(main())


@pytest.mark.parametrize("is_batch", [False, True])
def test_threads_may_be_added_and_removed_while_messages_are_consumed(is_batch: bool) -> None:
    async def main() -> None:
        async with recording() as w:
            slow = Slow()
            consumer = w.consumer(consume_threads=2)
            if is_batch:
                consumer = w.cluster.push_consumer("batches", PushConsumerConfig(consume_threads=2))
                consumer.subscribe(TOPIC)

                async def listen(messages: list[MessageExt]) -> None:
                    w.received.extend(message.body for message in messages)
                    await slow(messages[0])

                consumer.listen_in_batches(listen)
            else:
                consumer = w.consumer(slow, consume_threads=2)
            async with consumer:
                await w.send(*BODIES)
                await w.until(lambda: slow.running == 2)
                consumer.consume_threads = 5
                await w.until(lambda: slow.running == 5)
                consumer.consume_threads = 1
                await asyncio.sleep(1)
                assert slow.running == 5, "no call is cut short"
                slow.let(5)
                await w.until(lambda: slow.running == 1)
                slow.let(1)
                await asyncio.sleep(1)
                assert slow.running == 1
                consumer.reconfigure(consume_threads=3)
                await w.until(lambda: slow.running == 3)
                slow.let(10_000)
                await w.until_received(*BODIES)
            assert slow.most == 5
            assert sorted(w.received) == sorted(BODIES)

    run_virtual(main())


def test_removing_idle_threads_loses_no_message() -> None:
    async def main() -> None:
        async with recording() as w:
            slow = Slow()
            consumer = w.consumer(slow, consume_threads=8)
            async with consumer:
                await asyncio.sleep(1)
                consumer.consume_threads = 1
                await w.send(*BODIES[:4])
                await asyncio.sleep(1)
                assert slow.running == 1
                slow.let(10_000)
                await w.until_received(*BODIES[:4])

    run_virtual(main())


@pytest.mark.parametrize("is_batch", [False, True])
def test_ordered_consumers_change_the_number_of_concurrent_queues(is_batch: bool) -> None:
    async def main() -> None:
        async with recording() as w:
            slow = Slow()
            consumer = w.cluster.push_consumer(
                "ordered", PushConsumerConfig(consume_threads=1, consume_batch_size=1)
            )
            consumer.subscribe(TOPIC)

            async def listen(messages: list[MessageExt]) -> None:
                await slow(messages[0])

            if is_batch:
                consumer.listen_orderly_in_batches(listen)
            else:
                consumer.listen_orderly(slow)
            async with consumer:
                await asyncio.sleep(5)
                await w.send(*BODIES)
                await w.until(lambda: slow.running == 1)
                await asyncio.sleep(1)
                consumer.consume_threads = 3
                await w.until(lambda: slow.running == 3)
                assert slow.most == 3
                consumer.consume_threads = 1
                await asyncio.sleep(1)
                assert slow.running == 3, "no call is cut short"
                slow.let(3)
                await asyncio.sleep(1)
                assert slow.running == 1, "the other turns end with their calls"
                consumer.consume_threads = 2
                await w.until(lambda: slow.running == 2)
                slow.let(10_000)

    run_virtual(main())


def test_options_that_cannot_be_changed_are_refused() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer(consume_threads=3)
            consumer.reconfigure(consume_threads=4)
            async with consumer:
                with pytest.raises(ConfigError, match="pull_threshold_count is 0"):
                    consumer.reconfigure(consume_threads=9, pull_threshold_count=0)
                assert consumer.consume_threads == 4
                with pytest.raises(UsageError, match=r"allocation cannot be changed after"):
                    consumer.reconfigure(allocation="AVG")  # type: ignore[call-arg]
                with pytest.raises(ConfigError, match="consume_threads is 1001"):
                    consumer.consume_threads = 1001
            with pytest.raises(ClosedError):
                consumer.reconfigure(consume_threads=5)

    run_virtual(main())


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("pull_threshold_topic_count", 1, 6_553_500),
        ("pull_threshold_topic_size_bytes", 1, 102_400 * 1024 * 1024),
    ],
)
def test_topic_limits_have_java_s_ranges(name: str, low: int, high: int) -> None:
    for value in (low, high, None):
        PushConsumerConfig(**{name: value})  # type: ignore[arg-type]
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=name):
            PushConsumerConfig(**{name: value})  # type: ignore[arg-type]


def test_a_topic_s_byte_limit_is_divided_too() -> None:
    flow = PullFlow(
        PushConsumerConfig(pull_threshold_topic_size_bytes=10, pull_threshold_size_bytes=1000)
    )
    queue = ProcessQueue(QUEUES[0])
    with flow.sharing(QUEUES[0]):
        queue.size_bytes = 10
        assert not flow.is_full(queue)
        with flow.sharing(QUEUES[1]):
            assert flow.is_full(queue)
            assert flow.size_limit_bytes("another") == 10
        assert not flow.is_full(queue)


def test_threads_of_blocking_listeners_grow_and_shrink() -> None:
    async def main() -> None:
        threads = UserThreads(1, "resized")
        gate = threading.Event()
        try:
            first = [threads(gate.wait) for _ in range(2)]
            threads.resize(3)
            others = [threads(gate.wait) for _ in range(3)]
            async with asyncio.timeout(10):
                while sum(one.name.startswith("resized") for one in threading.enumerate()) < 4:  # noqa: ASYNC110 - threads set no event
                    await asyncio.sleep(0.001)
            gate.set()
            assert await asyncio.gather(*first, *others) == [True] * 5
        finally:
            gate.set()
            threads.close()

    asyncio.run(main())


def test_turns_are_admitted_in_order_and_a_cancelled_waiter_loses_none() -> None:
    async def main() -> None:
        turns = Turns(1)
        order: list[int] = []

        async def take(number: int) -> None:
            async with turns:
                order.append(number)
                await asyncio.sleep(1)

        tasks = [asyncio.create_task(take(number)) for number in range(5)]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.sleep(0.6)
        assert order == [0, 2]
        turns.resize(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [0, 2, 3, 4]
        turns.resize(1)
        await asyncio.gather(*tasks, return_exceptions=True)
        await take(9)
        assert order == [0, 2, 3, 4, 9]

    run_virtual(main())


def test_topic_share_divides_a_limit_among_held_queues() -> None:
    assert topic_share(1000, 3) == 333
    assert topic_share(2, 3) == 1, "never too low to pull anything"
    assert topic_share(1000, 0) == 1000
