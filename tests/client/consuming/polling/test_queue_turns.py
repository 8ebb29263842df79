"""Queue callbacks: each queue of a member has its turns, and moves repeat none."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from itertools import pairwise

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.errors import UsageError
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

GROUP = "consumers"


def scheduled(
    w: Recording, name: str = "m", *, take_s: float = 0.0, **options: int
) -> PullConsumer:
    """Return a member whose callback records its messages in `w.received`, and commits."""
    config = PullConsumerConfig(instance_name=name, **options)  # type: ignore[arg-type]
    consumer = w.cluster.pull_consumer(GROUP, config)

    async def take(queue: MessageQueue) -> int | None:
        offset = await consumer.committed(queue) or 0
        result = await consumer.pull(queue, offset)
        w.received += [message.body for message in result.messages]
        await asyncio.sleep(take_s)
        await consumer.commit_offset(queue, result.next_offset)
        return 0 if result.messages else 1_000

    assert consumer.call_for_queues(TOPIC, take) is take
    return consumer


def test_each_queue_has_its_turns_without_repeating_committed_messages() -> None:
    async def main() -> None:
        async with recording(queues=3) as w:
            await w.send(*[b"%d" % n for n in range(9)])
            async with scheduled(w):
                await w.until(lambda: len(w.received) == 9)
                await w.send(b"late")
                await w.until(lambda: w.received[-1] == b"late", timeout_s=2)
            async with scheduled(w):
                await asyncio.sleep(5)
            assert Counter(w.received) == Counter([*(b"%d" % n for n in range(9)), b"late"])

    run_virtual(main())


def test_a_planned_move_of_a_queue_repeats_nothing() -> None:
    async def main() -> None:
        bodies = [b"%d" % n for n in range(60)]
        async with recording(queues=4) as w:
            sending = asyncio.create_task(w.send(*bodies))
            async with scheduled(w, "a", take_s=0.2) as first:
                for _ in range(3):
                    async with scheduled(w, "b", take_s=0.2) as second:
                        await w.until(lambda: len(first.queues) == len(second.queues) == 2)
                        await asyncio.sleep(1)
                    await w.until(lambda: len(first.queues) == 4)
                await sending
                await w.until(lambda: len(set(w.received)) == len(bodies))
            assert Counter(w.received) == Counter(bodies)

    run_virtual(main())


def test_the_callback_sets_the_delay_before_its_next_turn() -> None:
    async def main() -> None:
        at: list[float] = []
        waits: list[int | None] = [3_000, None, 1_000]
        async with recording(queues=1) as w:
            config = PullConsumerConfig(schedule_delay_ms=500)
            async with w.cluster.pull_consumer(GROUP, config) as consumer:

                async def note(_: MessageQueue) -> int | None:
                    at.append(asyncio.get_running_loop().time())
                    return waits[len(at) - 1] if len(at) < 4 else 86_400_000

                consumer.call_for_queues(TOPIC, note)
                await w.until(lambda: len(at) == 4)
            passed = [later - earlier for earlier, later in pairwise(at)]
            assert passed == pytest.approx([3.0, 0.5, 1.0])

    run_virtual(main())


def test_a_failing_callback_has_another_turn_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(turns: list[int]) -> object:
        if len(turns) == 1:
            raise ValueError("not now")
        if len(turns) == 2:
            raise asyncio.CancelledError
        if len(turns) == 3:
            raise GeneratorExit
        return "soon" if len(turns) == 4 else -1

    async def main() -> None:
        turns: list[int] = []
        async with recording(queues=1) as w, w.cluster.pull_consumer(GROUP) as consumer:

            async def fail(queue: MessageQueue) -> int:
                turns.append(queue.queue_id)
                return failing(turns)  # type: ignore[return-value]

            consumer.call_for_queues(TOPIC, fail)
            await w.until(lambda: len(turns) == 7)

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert [one.getMessage() for one in caplog.records if "queue_turn" in one.getMessage()] == [
        f"queue_turn.failed queue={MessageQueue(TOPIC, 'broker-0', 0)}"
    ]


def test_paused_queues_and_unsubscribed_topics_have_no_turns() -> None:
    async def main() -> None:
        async with recording(queues=2) as w, scheduled(w) as consumer:
            await w.until(lambda: len(consumer.queues) == 2)
            consumer.pause(consumer.queues)
            await asyncio.sleep(2)
            await w.send(b"1", b"2")
            await asyncio.sleep(5)
            assert w.received == []
            consumer.resume(consumer.queues)
            await w.until(lambda: len(w.received) == 2)
            consumer.unsubscribe(TOPIC)
            await w.until(lambda: consumer.queues == [])
            await w.send(b"3")
            await asyncio.sleep(5)
            assert len(w.received) == 2

    run_virtual(main())


def test_callbacks_see_an_offset_reset_by_an_administrator() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin, scheduled(w):
            await w.send(b"1", b"2")
            await w.until(lambda: len(w.received) == 2)
            await asyncio.sleep(6)
            await admin.reset_offset(GROUP, TOPIC, to="earliest")
            await w.until(lambda: len(w.received) == 4)
            await asyncio.sleep(20)
            assert await w.committed() == 2

    run_virtual(main())


def test_a_turn_that_does_not_end_delays_the_move_by_half_a_second() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            consumer = scheduled(w, take_s=1_000)
            await w.send(b"1")
            await consumer.start()
            await w.until(lambda: w.received == [b"1"])
            began_s = asyncio.get_running_loop().time()
            await consumer.close()
            assert asyncio.get_running_loop().time() - began_s < 1
            assert await w.committed() == 0

    run_virtual(main())


def test_invalid_callbacks_are_refused() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, scheduled(w) as consumer:

            def generate(_: MessageQueue) -> object:
                yield 1

            with pytest.raises(UsageError, match="generator"):
                consumer.call_for_queues(TOPIC, generate)  # type: ignore[arg-type]
            await w.until(lambda: len(consumer.queues) == 1)
            with pytest.raises(UsageError, match="has a callback"):
                await consumer.seek_to_beginning(consumer.queues[0])
            with pytest.raises(UsageError, match="not both"):
                await consumer.assign(consumer.queues)

    run_virtual(main())
