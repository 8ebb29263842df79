"""A queue assigned again to a member whose call still runs is started after that call."""

from __future__ import annotations

import asyncio

from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from tests.client.consuming.ordered_rig import Ordered


def _ids(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


def test_an_ordered_queue_is_not_restarted_while_its_own_call_runs() -> None:
    async def main() -> None:
        async def slow(message: MessageExt) -> None:
            await asyncio.sleep(30 if message.body in (b"0", b"1") else 0)

        async with recording(queues=2) as w:
            rig = Ordered(w)
            await w.send(b"0", b"1", b"2", b"3", b"4", b"5")
            stays = rig.consumer(slow, instance_name="a")
            passes_by = rig.consumer(instance_name="b")
            async with stays:
                await w.until(lambda: bool(rig.received[0] and rig.received[1]))
                await passes_by.start()
                await w.until(lambda: len(_ids(stays)) == 1, timeout_s=5)
                await passes_by.close()
                await asyncio.sleep(10)
                assert len(_ids(stays)) == 1, "the other queue is leaving while its call runs"
                await w.until(lambda: _ids(stays) == [0, 1], timeout_s=40)
                await w.until(lambda: len(rig.received[0]) + len(rig.received[1]) == 6, timeout_s=5)
            for bodies in rig.received.values():
                assert bodies == sorted(bodies, key=int)

    run_virtual(main())
