"""Pulls of fixed queue ranges, several at once, in queue order within each range.

A range ends at an offset, not after a number of messages, because a filter returns fewer messages
than offsets. Without a filter the following pulls of a range do not wait for the answers to the
previous ones: each requests a slice of the range, of as many messages as the broker returned last.
Answers are not decoded here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from kourou.client.consuming.membership.subscriptions import subscription_of
from kourou.client.pull_result import PullResult, PullStatus
from kourou.errors import InvalidParameterError, ProtocolError, TopicNotFoundError
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SQL92_EXPRESSION, SubscriptionData
from kourou.spark.planning import QueueBounds, QueueRange
from kourou.spark.read_options import ReadOptions
from kourou.spark.record_columns import Answer

_PROGRESS: Final = (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
_GONE: Final = (TopicNotFoundError, InvalidParameterError)
"""Refusals if the topic was deleted, and created again perhaps, or has fewer queues."""
_FILL: Final = 0.95
"""Part of the estimated number of messages in an answer that is requested, since sizes vary."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """An answer to a pull.

    Attributes:
        answer: the records, and the offsets that the answer covers.
        bounds: the offsets that the queue held; None if the broker refused the pull.
        is_lost: the queue does not hold the offsets that the answer covers.
        refusal: the reason why the broker has no such queue any more; else None.
    """

    answer: Answer
    bounds: QueueBounds | None
    is_lost: bool
    refusal: str | None = None


@dataclass(slots=True)
class _Pull:
    """A pull in progress, of the offsets from `start` to `until` (exclusive)."""

    start: int
    until: int
    requested: int
    task: asyncio.Task[PullResult | str]


@dataclass(slots=True)
class _Cursor:
    """Progress of a range.

    Attributes:
        next_offset: the first offset that no pull covers.
        slice: number of offsets that the next pull covers.
        is_measured: an answer arrived, so `slice` is about the number of messages of an answer.
        bytes_max: size of the largest answer with fewer messages than requested; 0 before one.
        pulls: those in progress, in queue order.
    """

    queue: MessageQueue
    next_offset: int
    until: int
    slice: int
    is_measured: bool = False
    bytes_max: int = 0
    pulls: deque[_Pull] = field(default_factory=deque)

    @property
    def is_finished(self) -> bool:
        return self.next_offset >= self.until and not self.pulls

    def measure(self, received: int, requested: int, size_bytes: int, slice_max: int) -> None:
        """Set the slice from an answer: brokers limit both the messages and the bytes of one."""
        self.is_measured = True
        if received < requested:
            self.bytes_max = max(self.bytes_max, size_bytes)
        if self.bytes_max:
            fitting = int(self.bytes_max * received * _FILL / size_bytes)
            self.slice = min(max(fitting, 1), slice_max)


class Source(Protocol):
    """Client that pulls; see `ClusterClient.pull`."""

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        max_messages: int,
        *,
        master_only: bool = False,
        topic_begin: int | None = None,
    ) -> PullResult:
        """Return the stored records of a queue from an offset on."""


class Puller:
    """Pulls ranges; at most `pull_max_in_flight` answers are awaited or held.

    Pulls are sent and answers received only while `next_portion` runs. The next pulls are sent
    before it returns, so that the broker works while the caller does.

    Attributes:
        pulls: number of requests sent.
    """

    def __init__(self, client: Source, ranges: Iterable[QueueRange], options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._waiting = deque(ranges)
        self._topic_begins = {one.queue: one.topic_begin for one in self._waiting}
        self._cursors: list[_Cursor] = []
        self._in_flight = 0
        self.pulls = 0

    def pull_again(self, ranges: Iterable[QueueRange]) -> None:
        """Pull the rests of answers that could not be decoded to their ends, before all else."""
        self._waiting.extendleft(range_ for range_ in ranges if len(range_))

    async def next_portion(self, rows: int, size_bytes: int) -> list[Pulled]:
        """Return the next answers, of about `rows` offsets or `size_bytes`; empty at the end.

        Raises:
            TransportError, RemoteError: a broker did not answer within pullTimeoutMs, or refused.
            ProtocolError: an answer makes no progress.
        """
        portion: list[Pulled] = []
        count = size = 0
        while True:
            self._send_all()
            if not self._cursors or count >= rows or size >= size_bytes:
                # One iteration of the loop sends the pulls, before the caller stops the loop.
                await asyncio.sleep(0)
                return portion
            for pulled in await self._receive():
                portion.append(pulled)
                count += pulled.answer.until - pulled.answer.start
                size += len(pulled.answer.raw)

    async def close(self) -> None:
        """Cancel the pulls in progress."""
        tasks = [pull.task for cursor in self._cursors for pull in cursor.pulls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _send_all(self) -> None:
        """Send pulls up to the limit: at least one a range, then of waiting ranges, then more."""
        for cursor in self._cursors:
            if not cursor.pulls:
                self._extend(cursor)
        limit = self._options.pull_max_in_flight
        while self._waiting and self._in_flight < limit:
            new = self._waiting.popleft()
            cursor = _Cursor(new.queue, new.start, new.until, self._options.pull_batch_size)
            self._cursors.append(cursor)
            self._extend(cursor)
        if self._options.is_filtered:
            return  # the next offset is in the answer
        while self._in_flight < limit:
            # A range shows by its first answer how many messages one has.
            open_ = [c for c in self._cursors if c.is_measured and c.next_offset < c.until]
            if not open_:
                return
            self._extend(min(open_, key=lambda cursor: len(cursor.pulls)))

    def _extend(self, cursor: _Cursor) -> None:
        """Send a pull of the next slice of a range; with a filter, of all that is left of it."""
        start, until = cursor.next_offset, cursor.until
        if not self._options.is_filtered:
            until = min(until, start + cursor.slice)
        cursor.pulls.append(self._send(cursor.queue, start, until))
        cursor.next_offset = until

    def _send(self, queue: MessageQueue, start: int, until: int) -> _Pull:
        requested = min(until - start, self._options.pull_batch_size)
        task = asyncio.create_task(self._pull(queue, start, requested), name=f"pull {queue}")
        self._in_flight += 1
        return _Pull(start, until, requested, task)

    async def _pull(self, queue: MessageQueue, offset: int, count: int) -> PullResult | str:
        """Return the answer; if the broker has no such queue any more, its text."""
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            subscription = _subscription(queue.topic, self._options)
            self._subscriptions[queue.topic] = subscription
        pull = partial(
            self._client.pull,
            queue,
            offset,
            subscription,
            count,
            topic_begin=self._topic_begins[queue],
        )
        try:
            self.pulls += 1
            result = await pull()
            if result.status not in _PROGRESS:
                # Perhaps from a slave that does not have the newest messages yet.
                self.pulls += 1
                result = await pull(master_only=True)
        except _GONE as error:
            return str(error)
        return result

    async def _receive(self) -> list[Pulled]:
        """Return the next answers in the order of their ranges; wait for one."""
        heads = [cursor.pulls[0].task for cursor in self._cursors]
        await asyncio.wait(heads, return_when=asyncio.FIRST_COMPLETED)
        received: list[Pulled] = []
        for cursor in self._cursors:
            while cursor.pulls and cursor.pulls[0].task.done():
                received.append(self._take(cursor))
        self._cursors = [cursor for cursor in self._cursors if not cursor.is_finished]
        return received

    def _take(self, cursor: _Cursor) -> Pulled:
        """Remove the answer to the first pull of a range; continue after it."""
        pull = cursor.pulls.popleft()
        self._in_flight -= 1
        result = pull.task.result()
        if isinstance(result, str):
            return self._end_range(cursor, pull.start, result)
        end = _end(pull, result)
        if end < pull.until:
            if cursor.pulls:
                cursor.pulls.appendleft(self._send(cursor.queue, end, pull.until))
            else:
                cursor.next_offset = end
        is_lost = result.status not in _PROGRESS
        raw = b"" if is_lost else result.raw
        if raw:
            cursor.measure(
                result.next_offset - pull.start,
                pull.requested,
                len(raw),
                self._options.pull_batch_size,
            )
        return Pulled(
            Answer(cursor.queue, raw, pull.start, end),
            QueueBounds(result.min_offset, result.max_offset),
            is_lost,
        )

    def _end_range(self, cursor: _Cursor, start: int, refusal: str) -> Pulled:
        """Finish a range whose queue is gone, with one answer for all offsets from `start` on."""
        for pull in cursor.pulls:
            pull.task.cancel()
        self._in_flight -= len(cursor.pulls)
        cursor.pulls.clear()
        cursor.next_offset = cursor.until
        answer = Answer(cursor.queue, b"", start, cursor.until)
        return Pulled(answer, None, is_lost=True, refusal=refusal)


def _end(pull: _Pull, result: PullResult) -> int:
    """Return the offset up to which an answer covers its pull.

    Raises:
        ProtocolError: it covers nothing, and does not say that the offsets are gone.
    """
    if result.next_offset > pull.start:
        return min(result.next_offset, pull.until)
    if result.status in _PROGRESS:
        raise ProtocolError(
            f"{result.queue}: the broker answered {result.status.name} at offset {pull.start}, "
            f"with the next offset {result.next_offset}, which is no progress"
        )
    # The queue was truncated below the offset since the plan.
    return pull.until


def _subscription(topic: str, options: ReadOptions) -> SubscriptionData:
    if options.expression_type == SQL92_EXPRESSION:
        return subscription_of(topic, None, options.sub_expression)
    return subscription_of(topic, options.sub_expression, None)
