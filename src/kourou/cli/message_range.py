"""Reading what a topic held when the reading began: a span of time, in the order of storing."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from kourou.cli.exits import one_line, say
from kourou.cli.start_time import Start
from kourou.client.consuming.pull_consumer import PullConsumer, PullResult
from kourou.errors import UsageError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue

PULL_MAX: Final = 256
"""Messages of one pull; each queue's are held until those of the others are as late."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """What to read.

    Attributes:
        topic: whose messages.
        tags: `*`, or tags joined by `||`.
        begin: Start.EARLIEST, or an instant in epoch ms.
        end_ms: stored at this time or before; None: all that is stored now.
        queue: `broker/queue_id`; None: all queues.
    """

    topic: str
    tags: str
    begin: Start | int
    end_ms: int | None
    queue: str | None


@dataclass(slots=True)
class Cursor:
    """One queue: the next queue offset to read, the one at which to end, and what was read."""

    queue: MessageQueue
    offset: int
    end: int
    read: deque[MessageExt]


async def find_cursors(consumer: PullConsumer, asked: Range) -> list[Cursor]:
    """Return where reading begins and ends in each queue that has something to read.

    Raises:
        UsageError: the topic has no such queue.
        NoRouteError: no name server knows the topic.
    """
    queues = await consumer.fetch_subscribe_message_queues(asked.topic)
    if asked.queue is not None:
        names = {f"{queue.broker_name}/{queue.queue_id}": queue for queue in queues}
        if asked.queue not in names:
            raise UsageError(
                f"topic {asked.topic} has no queue {asked.queue!r}; it has {', '.join(names)}"
            )
        queues = [names[asked.queue]]

    async def find(queue: MessageQueue) -> Cursor:
        if isinstance(asked.begin, Start):
            begin = await consumer.min_offset(queue)
        else:
            begin = await consumer.offset_for_time(queue, asked.begin)
        end = await consumer.max_offset(queue)
        if asked.end_ms is not None:
            end = min(end, await consumer.offset_for_time(queue, asked.end_ms + 1))
        return Cursor(queue, begin, end, deque())

    found = await asyncio.gather(*map(find, queues))
    return [cursor for cursor in found if cursor.offset < cursor.end]


async def read(
    consumer: PullConsumer, cursors: list[Cursor], tags: str, on_read: Callable[[int], None]
) -> AsyncGenerator[MessageExt, None]:
    """Yield the messages of all cursors, sorted by when they were stored.

    Args:
        consumer: reads.
        cursors: moved as they are read.
        tags: as in `Range`.
        on_read: told how many offsets were read, those without a message included.
    """
    heap: list[tuple[int, int]] = []

    async def push(index: int) -> None:
        cursor = cursors[index]
        await _fill(consumer, cursor, tags, on_read)
        if cursor.read:
            heapq.heappush(heap, (cursor.read[0].store_at_ms, index))

    await asyncio.gather(*map(push, range(len(cursors))))
    while heap:
        _, index = heapq.heappop(heap)
        yield cursors[index].read.popleft()
        await push(index)


def readable_of(result: PullResult) -> list[MessageExt]:
    """Return the messages of a pull that can be read; the others are named on the error stream."""
    for message, error in result.undecodable:
        say(
            f"message {message.msg_id} at offset {message.queue_offset} of {message.topic} queue "
            f"{message.queue_id} on {message.broker_name} cannot be read: {one_line(str(error))}"
        )
    return result.readable


async def _fill(
    consumer: PullConsumer, cursor: Cursor, tags: str, on_read: Callable[[int], None]
) -> None:
    """Read on if nothing is left of what was read; leave nothing at the queue's end."""
    while not cursor.read and cursor.offset < cursor.end:
        result = await consumer.pull(cursor.queue, cursor.offset, tags=tags, max_messages=PULL_MAX)
        if result.next_offset <= cursor.offset:
            cursor.end = cursor.offset  # it was cut while we read
            return
        cursor.read.extend(
            message for message in readable_of(result) if message.queue_offset < cursor.end
        )
        on_read(min(result.next_offset, cursor.end) - cursor.offset)
        cursor.offset = result.next_offset
