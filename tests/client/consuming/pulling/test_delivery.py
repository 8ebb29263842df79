"""Messages that are ready, and takers that wait for one."""

from __future__ import annotations

import asyncio

from kourou.client.consuming.pulling.delivery import Delivery, ReadyMessages
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from tests.client.consuming.messages import message_at


def test_cancelled_takers_are_removed() -> None:
    async def main() -> None:
        ready = ReadyMessages()
        for _ in range(3):
            waiting = [asyncio.create_task(ready.take()) for _ in range(10)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert ready.taker_count == 0

    run_virtual(main())


def test_a_wake_up_of_a_cancelled_taker_passes_to_another() -> None:
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


async def _takers(ready: ReadyMessages, count: int, taken: list[tuple[int, int]]) -> None:
    """Start `count` tasks that take messages endlessly, and wait until all of them wait."""

    async def take(number: int) -> None:
        while (delivery := await ready.take()) is not None:
            taken.append((number, delivery.message.queue_offset))

    for number in range(count):
        asyncio.get_running_loop().create_task(take(number))
    await asyncio.sleep(0)


def test_a_taker_that_never_waits_takes_all_messages_of_a_put() -> None:
    async def main() -> None:
        ready, queue = ReadyMessages(), ProcessQueue(MessageQueue("T", "b", 0))
        taken: list[tuple[int, int]] = []
        await _takers(ready, 3, taken)
        ready.put(queue, queue.put([message_at(offset) for offset in range(5)]))
        await asyncio.sleep(0)
        assert taken == [(0, offset) for offset in range(5)]
        ready.close()

    run_virtual(main())


def test_waiting_takers_are_woken_for_the_remaining_messages() -> None:
    async def main() -> None:
        for patience_s in (0.0, 0.001):
            ready, queue = ReadyMessages(), ProcessQueue(MessageQueue("T", "b", 0))
            ready.wake_delay_s = patience_s
            waiting = [asyncio.create_task(ready.take()) for _ in range(4)]
            await asyncio.sleep(0)
            ready.put(queue, queue.put([message_at(offset) for offset in range(3)]))
            done, left = await asyncio.wait(waiting, timeout=0.01)
            taken = [task.result() for task in done]
            assert sorted(one.message.queue_offset for one in taken if one) == [0, 1, 2]
            ready.close()
            assert [await task for task in left] == [None]

    run_virtual(main())


def test_messages_put_after_close_are_ignored() -> None:
    async def main() -> None:
        ready, queue = ReadyMessages(), ProcessQueue(MessageQueue("T", "b", 0))
        messages = queue.put([message_at(0), message_at(1)])
        ready.put(queue, messages[:1])
        delivery = ready.take_now()
        assert delivery is not None
        ready.close()
        ready.put_first(delivery)
        ready.put(queue, messages[1:])
        assert ready.take_now() is None
        assert await ready.take() is None

    run_virtual(main())


def test_a_taker_cancelled_during_another_wake_up_loses_no_message() -> None:
    async def main() -> None:
        ready, queue = ReadyMessages(), ProcessQueue(MessageQueue("T", "b", 0))
        first, second = (asyncio.create_task(ready.take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        ready.put(queue, queue.put([message_at(0)]))
        ended, taken = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)
        assert isinstance(taken, Delivery)

    run_virtual(main())
