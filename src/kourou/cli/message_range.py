"""Reads of a topic's current messages in a time range, in the order in which they were stored."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from kourou.cli.exits import one_line, print_stderr
from kourou.cli.start_time import Start
from kourou.client.consuming.pull_consumer import PullConsumer, PullResult
from kourou.errors import UsageError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue

PULL_MAX: Final = 256
"""Maximum number of messages of one pull; they are buffered to merge the queues by store time."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The messages to read.

    Attributes:
        topic: the topic.
        tags: `*`, or tags joined by `||`.
        begin: Start.EARLIEST, or the earliest store time in epoch ms.
        end_ms: the latest store time in epoch ms; None for all messages stored now.
        queue: `broker/queue_id`; None for all queues.
    """

    topic: str
    tags: str
    begin: Start | int
    end_ms: int | None
    queue: str | None


@dataclass(slots=True)
class Cursor:
    """The read of one queue: next queue offset, end (exclusive), and buffered messages."""

    queue: MessageQueue
    offset: int
    end: int
    read: deque[MessageExt]


async def find_cursors(consumer: PullConsumer, selection: Range) -> list[Cursor]:
    """Return a cursor for each queue with messages in the range.

    Raises:
        UsageError: the topic does not have the queue.
        NoRouteError: no name server has a route for the topic.
    """
    queues = await consumer.fetch_subscribe_message_queues(selection.topic)
    if selection.queue is not None:
        names = {f"{queue.broker_name}/{queue.queue_id}": queue for queue in queues}
        if selection.queue not in names:
            raise UsageError(
                f"topic {selection.topic} has no queue {selection.queue!r}; "
                f"it has {', '.join(names)}"
            )
        queues = [names[selection.queue]]

    async def find(queue: MessageQueue) -> Cursor:
        if isinstance(selection.begin, Start):
            begin = await consumer.min_offset(queue)
        else:
            begin = await consumer.offset_for_time(queue, selection.begin)
        end = await consumer.max_offset(queue)
        if selection.end_ms is not None:
            end = min(end, await consumer.offset_for_time(queue, selection.end_ms + 1))
        return Cursor(queue, begin, end, deque())

    found = await asyncio.gather(*map(find, queues))
    return [cursor for cursor in found if cursor.offset < cursor.end]


async def read(
    consumer: PullConsumer, cursors: list[Cursor], tags: str, on_read: Callable[[int], None]
) -> AsyncGenerator[MessageExt, None]:
    """Yield the messages of all cursors, sorted by store time.

    Args:
        consumer: the consumer that pulls.
        cursors: advanced by the read.
        tags: as in `Range`.
        on_read: called with the number of offsets read, including those without a message.
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
    """Return the decodable messages of a pull; report the others on stderr."""
    for message, error in result.undecodable:
        print_stderr(
            f"message {message.msg_id} at offset {message.queue_offset} of {message.topic} queue "
            f"{message.queue_id} on {message.broker_name} cannot be decoded: {one_line(str(error))}"
        )
    return result.readable


async def _fill(
    consumer: PullConsumer, cursor: Cursor, tags: str, on_read: Callable[[int], None]
) -> None:
    """Pull until messages are buffered or the end of the range is reached."""
    while not cursor.read and cursor.offset < cursor.end:
        result = await consumer.pull(cursor.queue, cursor.offset, tags=tags, max_messages=PULL_MAX)
        if result.next_offset <= cursor.offset:
            cursor.end = cursor.offset  # the queue was truncated during the read
            return
        cursor.read.extend(
            message for message in readable_of(result) if message.queue_offset < cursor.end
        )
        on_read(min(result.next_offset, cursor.end) - cursor.offset)
        cursor.offset = result.next_offset
