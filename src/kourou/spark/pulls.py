"""Pulls of fixed queue ranges, several at once, in the order in which the brokers answer.

A range ends at an offset, not after a number of messages, because a tag filter returns fewer
messages than offsets. Planned offsets that a queue no longer holds are a data loss: they raise an
error or log a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.client.consuming.pull_consumer import PullConsumer, PullResult, PullStatus
from kourou.errors import DataLossError, ProtocolError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.spark.options import ReadOptions
from kourou.spark.planning import QueueBounds, QueueRange

log = logging.getLogger(__name__)

REQUESTS_IN_FLIGHT_MAX: Final = 8
"""Maximum number of pulls at once. It keeps a broker busy while rows are built; each answer may
take 256 KiB and more."""


@dataclass(slots=True)
class Cursor:
    """Progress of a range: the next offset to pull, and the end (exclusive)."""

    queue: MessageQueue
    offset: int
    until: int


async def fetch_bounds(
    consumer: PullConsumer, options: ReadOptions
) -> dict[MessageQueue, QueueBounds]:
    """Return the current offsets of each readable queue of the topic.

    Raises:
        TransportError: no name server or broker answered in time.
        RemoteError: the topic does not exist, or is not readable.
    """
    slots = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)

    async def fetch(queue: MessageQueue) -> QueueBounds:
        async with slots:
            low = await consumer.min_offset(queue)
            return QueueBounds(low, await consumer.max_offset(queue))

    queues = await consumer.fetch_subscribe_message_queues(options.topic)
    bounds = await asyncio.gather(*map(fetch, queues))
    return dict(zip(queues, bounds, strict=True))


async def pull_ranges(
    consumer: PullConsumer, ranges: Sequence[QueueRange], options: ReadOptions
) -> AsyncGenerator[list[MessageExt], None]:
    """Yield the messages of the ranges, one pull at a time; within a range, in queue order.

    While the caller processes the yielded messages, the next pulls are already sent.

    Raises:
        DataLossError: planned offsets were deleted, and failOnDataLoss is true.
        TransportError, RemoteError: a broker did not answer within pullTimeoutMs, or refused.
    """
    waiting = deque(Cursor(range_.queue, range_.start, range_.until) for range_ in ranges)
    pulls: dict[asyncio.Task[PullResult], Cursor] = {}
    try:
        while waiting or pulls:
            while waiting and len(pulls) < REQUESTS_IN_FLIGHT_MAX:
                cursor = waiting.popleft()
                pulls[asyncio.create_task(_pull(consumer, cursor, options))] = cursor
            done, _ = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                cursor = pulls.pop(task)
                messages = advance_cursor(cursor, task.result(), options)
                if cursor.offset < cursor.until:
                    pulls[asyncio.create_task(_pull(consumer, cursor, options))] = cursor
                if messages:
                    yield messages
    finally:
        for task in pulls:
            task.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)


async def _pull(consumer: PullConsumer, cursor: Cursor, options: ReadOptions) -> PullResult:
    """Return the next answer for a range; the consumer retries after transient failures."""
    return await consumer.pull(
        cursor.queue,
        cursor.offset,
        tags=options.sub_expression,
        max_messages=min(options.pull_batch_size, cursor.until - cursor.offset),
        timeout_ms=options.pull_timeout_ms,
    )


def advance_cursor(cursor: Cursor, result: PullResult, options: ReadOptions) -> list[MessageExt]:
    """Advance the cursor by an answer, and return the messages that are within its range."""
    requested, until = cursor.offset, cursor.until
    is_progress = result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
    if result.next_offset <= requested and is_progress:
        raise ProtocolError(
            f"{cursor.queue}: the broker answered {result.status.name} at offset {requested}, with "
            f"the next offset {result.next_offset}, which is no progress"
        )
    # Any other status means that the queue was truncated since the plan, perhaps below `requested`.
    cursor.offset = min(result.next_offset, until) if result.next_offset > requested else until
    # Without `failOnDataLoss`, an undecodable message counts as lost, like a deleted one.
    readable = result.messages if options.fail_on_data_loss else _readable(result)
    messages = [message for message in readable if requested <= message.queue_offset < until]
    if not is_progress or not options.is_filtered:
        # Without a filter each offset is a message. A broker skips deleted ones without an error.
        _report_loss(cursor, result, requested, cursor.offset - requested - len(messages), options)
    return messages


def _readable(result: PullResult) -> list[MessageExt]:
    for message, error in result.undecodable:
        log.warning(
            "spark_message.unreadable queue=%s offset=%d reason=%s",
            result.queue, message.queue_offset, error,
        )  # fmt: skip
    return result.readable


def _report_loss(
    cursor: Cursor, result: PullResult, requested: int, lost: int, options: ReadOptions
) -> None:
    """Raise an error, or log a warning, if messages between `requested` and the cursor are lost."""
    if not lost:
        return
    loss = (
        f"{cursor.queue}: {lost} of the offsets {requested} to {cursor.offset} (exclusive) were "
        f"deleted since the read was planned; the queue now holds {result.min_offset} to "
        f"{result.max_offset} (exclusive)"
    )
    if options.fail_on_data_loss:
        raise DataLossError(loss)
    log.warning("spark_offsets.lost reason=%s", loss)
