"""Handover delay of a queue that another member may have held."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou.client.consuming.membership.rebalance import HandoverDelays
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

QUEUE = MessageQueue("T", "a", 0)
OTHER = MessageQueue("T", "a", 1)


def test_the_handover_delay_starts_when_the_queue_is_first_assigned() -> None:
    delays = HandoverDelays(2.0)
    assert delays.remaining_s(QUEUE, 100.0) == 2.0
    assert delays.remaining_s(QUEUE, 101.5) == 0.5
    assert delays.remaining_s(OTHER, 101.5) == 2.0
    assert delays.remaining_s(QUEUE, 102.0) == 0.0
    assert len(delays) == 1
    assert delays.remaining_s(QUEUE, 103.0) == 2.0, "it was started, lost, and assigned again"


def test_a_cancelled_handover_delay_starts_over() -> None:
    delays = HandoverDelays(2.0)
    delays.remaining_s(QUEUE, 100.0)
    delays.remaining_s(OTHER, 100.0)
    delays.note_assigned("U", ())
    delays.note_assigned("T", (OTHER,))
    assert delays.remaining_s(QUEUE, 101.0) == 2.0
    assert delays.remaining_s(OTHER, 101.0) == 1.0


def test_a_handover_delay_not_checked_for_long_starts_over() -> None:
    delays = HandoverDelays(2.0)
    delays.remaining_s(QUEUE, 100.0)
    assert delays.remaining_s(QUEUE, 111.9) == 0.0
    delays.remaining_s(QUEUE, 120.0)
    assert delays.remaining_s(QUEUE, 132.0) == 2.0


def test_without_handover_delay_a_queue_is_started_at_once() -> None:
    assert HandoverDelays(0.0).remaining_s(QUEUE, 100.0) == 0.0


def _ids(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


def test_a_queue_assigned_revoked_and_assigned_again_is_released_first() -> None:
    """Queue 1 is assigned to "b", revoked in favour of "0", and soon assigned to "b" again."""

    async def main() -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(0.4)

        async with recording(queues=2) as w:
            bodies = [b"%d" % number for number in range(120)]
            await w.send(*bodies)
            a = w.consumer(work, instance_name="a", consume_threads=2)
            b = w.consumer(work, instance_name="b", consume_threads=2)
            nought = w.consumer(work, instance_name="0", consume_threads=2)
            async with a:
                await w.until(lambda: _ids(a) == [0, 1])
                joining = asyncio.create_task(b.start())
                await asyncio.sleep(1)
                async with nought:
                    await w.until(lambda: _ids(nought) == [0] and _ids(a) == [1], timeout_s=5)
                    await joining
                    assert _ids(b) == []
                await w.until(lambda: _ids(a) == [0] and _ids(b) == [1], timeout_s=5)
                await w.until_received(*bodies)
                await b.close()
            assert Counter(w.received) == Counter(bodies)

    run_virtual(main())
