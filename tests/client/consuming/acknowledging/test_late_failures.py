"""Failures of a listener after its message is overdue or its queue has moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import Message, MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording


def topic_queues(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


def test_an_overdue_message_is_redelivered_after_ten_seconds_each_time() -> None:
    async def main() -> None:
        async def hang_thrice(message: MessageExt) -> None:
            if message.reconsume_times < 3:
                await asyncio.Event().wait()

        async with recording() as w:
            await w.send(b"x")
            timeout_ms = 60_000
            async with w.consumer(
                hang_thrice, consume_timeout_ms=timeout_ms, shutdown_timeout_ms=1
            ):
                await w.until_received(*[b"x"] * 4, timeout_s=600)
            # The delay does not grow, as it does for listeners that raise.
            assert [one.properties["DELAY"] for one in w.deliveries[1:]] == ["3"] * 3

    run_virtual(main())


def test_a_failure_after_the_queue_moved_sends_nothing_back() -> None:
    async def main() -> None:
        moved = asyncio.Event()

        async def fail_when_moved(_: MessageExt) -> None:
            await moved.wait()
            raise ValueError("too late")

        async with recording(queues=2) as w:
            bodies = [b"%d" % number for number in range(4)]
            await w.send(*bodies)
            old = w.consumer(fail_when_moved, instance_name="a")
            new = w.consumer(instance_name="b")
            async with old:
                await w.until_received(*bodies)
                async with new:
                    await w.until(lambda: topic_queues(new) == [1], timeout_s=10)
                    mine = [one.body for one in w.deliveries if one.queue_id == 1]
                    await w.until(lambda: len(w.received) == 6, timeout_s=10)
                    moved.set()
                    await asyncio.sleep(1)
                    moved.clear()
                    await asyncio.sleep(60)
                    again = Counter(one.body for one in w.deliveries if one.reconsume_times)
                    assert set(again) == set(bodies) - set(mine)

    run_virtual(main())


def test_a_copy_of_a_scheduled_message_waits_like_any_other() -> None:
    async def main() -> None:
        times: list[float] = []

        def fail_once(message: MessageExt) -> None:
            times.append(asyncio.get_running_loop().time())
            message.physical_offset = 10**15  # its broker does not find it: a copy is sent
            if message.reconsume_times < 2:
                raise ValueError("again")

        async with recording(brokers=2) as w, w.consumer(fail_once):
            async with w.cluster.producer() as producer:
                await producer.send(Message(TOPIC, b"x", delay_ms=5_000))
            await w.until_received(*[b"x"] * 3, timeout_s=90)
            waits = [later - earlier for earlier, later in pairwise(times)]
            assert waits == pytest.approx([10, 30], abs=1.5)

    run_virtual(main())
