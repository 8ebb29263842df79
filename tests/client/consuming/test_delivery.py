"""Messages that wait to be consumed, and those who wait for one."""

from __future__ import annotations

import asyncio

from kourou.client.consuming.delivery import ReadyMessages
from kourou.client.consuming.process_queue import ProcessQueue
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from tests.client.consuming.test_process_queue import message_at


def test_waits_that_were_given_up_leave_nothing_behind() -> None:
    async def main() -> None:
        ready = ReadyMessages()
        for _ in range(3):
            waiting = [asyncio.create_task(ready.take()) for _ in range(10)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert not ready._takers

    run_virtual(main())


def test_a_message_that_woke_one_who_gave_up_goes_to_another() -> None:
    async def main() -> None:
        ready, queue = ReadyMessages(), ProcessQueue(MessageQueue("T", "b", 0))
        first, second = (asyncio.create_task(ready.take()) for _ in range(2))
        await asyncio.sleep(0)
        ready.put(queue, queue.put([message_at(0)]))
        first.cancel()
        taken = await second
        assert taken is not None
        assert taken.message.queue_offset == 0

    run_virtual(main())
