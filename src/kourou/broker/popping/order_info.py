"""Order infos: the last ordered pop of each group from each queue, which blocks the next one.

An ordered pop has no checkpoint. The order info holds the offsets that it returned, the time until
which each is invisible, and a bit for each that is acknowledged. As long as one of them is neither
acknowledged nor visible again, further pops of the group get nothing from the queue. Only a pop
with the attempt id of the blocking one gets the messages again, because its answer was lost.

An ordered pop commits the offset at which it began to read; only acks move it, to the first message
that is not acknowledged. So a message that becomes visible again is popped before later ones.

A queue is cleared by a reset, and when its topic or group is deleted. Acks of earlier pops then
settle nothing: no info is left, and `cleared` remembers that none may be guessed, until the next
pop. Otherwise an ack without an info, as after the loss of the file, moves the committed offset by
one at most. Java sets it behind the acknowledged message, and loses the messages before.

Everything is a decision in memory; `kourou.broker.popping.order_table` makes it durable.

Source: QueueLevelConsumerManager.java, QueueLevelConsumerOrderInfoLockManager.java,
AckMessageProcessor.ackOrderly, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kourou.protocol.popping.order_file import OrderInfo

IDLE_MS_MAX: Final = 24 * 3_600_000
"""An info is removed this long after its pop."""

_STALE_ENDS_MAX: Final = 1_000
_BITS: Final = 64
_ALL_BITS: Final = (1 << _BITS) - 1


class OrderedQueue(NamedTuple):
    """A queue as popped in order by one group."""

    topic: str
    group: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class OrderBlock:
    """The reason why a queue is blocked.

    Attributes:
        queue_offset: the first message that is neither acknowledged nor visible again.
        visible_at_ms: when that message becomes visible again, in epoch ms.
        free_at_ms: when the last message of the pop does, and the queue is free, in epoch ms.
    """

    queue_offset: int
    visible_at_ms: int
    free_at_ms: int

    def __str__(self) -> str:
        visible = f"invisible until {_time_text(self.visible_at_ms)}"
        text = f"offset {self.queue_offset} is not acknowledged, and {visible}"
        if self.free_at_ms > self.visible_at_ms:
            text += f"; later offsets until {_time_text(self.free_at_ms)}"
        return text


@dataclass(frozen=True, slots=True)
class OrderedPop:
    """An ordered pop that found messages in one queue.

    Attributes:
        offsets: the queue offsets of its messages, ascending; at least one.
        pop_time_ms: in epoch milliseconds.
        invisible_ms: time until the messages become visible again, in milliseconds.
        attempt_id: the attempt of the client; a pop with the same one is not blocked by this one.
    """

    offsets: Sequence[int]
    pop_time_ms: int
    invisible_ms: int
    attempt_id: str | None = None


class ConsumedCounts(NamedTuple):
    """Number of earlier pops of the messages of one pop.

    Attributes:
        by_offset: queue offset to the number, if that is not 0.
        least: the lowest number of all messages of the pop.
    """

    by_offset: Mapping[int, int]
    least: int


class OrderAck(NamedTuple):
    """Result of an ack.

    Attributes:
        commit_offset: the offset to commit for the group; None to leave it as it is.
        is_illegal: whether the pop did not return this message: the ack is refused.
        is_free: whether the queue is not blocked any more: a held pop can be woken.
    """

    commit_offset: int | None = None
    is_illegal: bool = False
    is_free: bool = False


_NOTHING: Final = OrderAck()
_ILLEGAL: Final = OrderAck(is_illegal=True)


class OrderInfos:
    """The order infos of a broker. Not safe for threads.

    A caller holds the lock of the queue from `block` to `add_pop`.
    """

    def __init__(self) -> None:
        self._infos: dict[OrderedQueue, OrderInfo] = {}
        self._cleared_at_ms: dict[OrderedQueue, int] = {}
        self._changed: dict[OrderedQueue, None] = {}
        self._ends: list[tuple[int, OrderedQueue]] = []  # heap; one valid entry per blocked queue
        self._end_of: dict[OrderedQueue, int] = {}

    def __len__(self) -> int:
        return len(self._infos)

    def find(self, queue: OrderedQueue) -> OrderInfo | None:
        """Return the info of the last pop; None if there is none."""
        return self._infos.get(queue)

    def queues(self) -> Iterator[OrderedQueue]:
        """Yield the queues that have an info, in no particular order."""
        yield from self._infos

    def items(self) -> Iterator[tuple[OrderedQueue, OrderInfo]]:
        """Yield all infos, in no particular order."""
        yield from self._infos.items()

    def cleared(self) -> Mapping[OrderedQueue, int]:
        """Return the queues cleared since their last pop, with the times in epoch ms."""
        return self._cleared_at_ms

    def restore(self, queue: OrderedQueue, info: OrderInfo) -> None:
        """Add an info from the file, unchanged."""
        self._cleared_at_ms.pop(queue, None)
        self._infos[queue] = info
        self._note_end(queue, info)

    def restore_cleared(self, queue: OrderedQueue, cleared_at_ms: int) -> None:
        """Note, from the file, that the queue was cleared."""
        self._infos.pop(queue, None)
        self._cleared_at_ms[queue] = cleared_at_ms

    def block(
        self,
        queue: OrderedQueue,
        now_ms: int,
        *,
        attempt_id: str | None = None,
        invisible_ms: int = 0,
    ) -> OrderBlock | None:
        """Return the reason why a pop of the queue gets nothing; None if it is not blocked.

        Args:
            queue: the queue.
            now_ms: the current time.
            attempt_id: the attempt of the pop.
            invisible_ms: the pop's invisible time, which is taken for an info that has none.
        """
        info = self._infos.get(queue)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return None
        if invisible_ms > 0 and not _invisible_ms(info):
            info = replace(info, invisible_time=invisible_ms)
            self._put(queue, info)
        free_at_ms = _free_at_ms(info)
        if free_at_ms is None or now_ms >= free_at_ms:
            return None
        invisible = (each for each in _unacknowledged(info) if now_ms < each[1])
        return OrderBlock(*next(invisible), free_at_ms)

    def add_pop(self, queue: OrderedQueue, pop: OrderedPop, now_ms: int) -> ConsumedCounts:
        """Store the pop as the last one of the queue; return the numbers of earlier pops.

        A message of the pop before counts as popped once more, unless this is the same attempt.
        """
        before = self._infos.get(queue)
        counts = None if before is None else _merged_counts(before, pop)
        first = pop.offsets[0]
        self._cleared_at_ms.pop(queue, None)
        self._put(
            queue,
            OrderInfo(
                pop_time=pop.pop_time_ms,
                invisible_time=pop.invisible_ms,
                offsets=(first, *(offset - first for offset in pop.offsets[1:])),
                consumed_counts=counts,
                last_consume_timestamp=now_ms,
                attempt_id=pop.attempt_id,
            ),
        )
        if not counts:
            return ConsumedCounts({}, 0)
        is_each_counted = len(counts) == len(pop.offsets)
        return ConsumedCounts(counts, min(counts.values()) if is_each_counted else 0)

    def ack(
        self,
        queue: OrderedQueue,
        queue_offset: int,
        pop_time_ms: int,
        committed: int | None,
        now_ms: int,
    ) -> OrderAck:
        """Acknowledge a message.

        Args:
            queue: the queue.
            queue_offset: of the message.
            pop_time_ms: of the pop that returned it, from the receipt handle.
            committed: the group's committed offset of the queue; None if it has none.
            now_ms: the current time.
        """
        if committed is not None and queue_offset < committed:
            return _NOTHING
        info = self._infos.get(queue)
        if info is None:
            if queue_offset != committed or queue in self._cleared_at_ms:
                return _NOTHING
            return OrderAck(queue_offset + 1, is_free=True)
        if not info.offsets:
            return _ILLEGAL
        if pop_time_ms != info.pop_time:
            return _NOTHING
        index = _index_of(info, queue_offset)
        if index is None:
            return _ILLEGAL
        if _unset_bits(info) >> index & 1:
            info = _with_bit(info, index)
            self._put(queue, info)
        following = next_offset(info)
        is_ahead = committed is None or following > committed
        return OrderAck(following if is_ahead else None, is_free=self.block(queue, now_ms) is None)

    def change(
        self, queue: OrderedQueue, queue_offset: int, pop_time_ms: int, visible_at_ms: int
    ) -> bool:
        """Change the time at which a message becomes visible again.

        Returns:
            False if nothing changed: the message is not of the last pop, or is acknowledged.
        """
        info = self._infos.get(queue)
        if info is None or pop_time_ms != info.pop_time:
            return False
        index = _index_of(info, queue_offset)
        if index is None or not _unset_bits(info) >> index & 1:
            return False
        times = {**(info.next_visible_times or {}), queue_offset: visible_at_ms}
        self._put(queue, replace(info, next_visible_times=times))
        return True

    def free_at_ms(self, queue: OrderedQueue) -> int | None:
        """Return when all messages of the last pop are visible again, in epoch ms.

        None if all are acknowledged, or if there is no info.
        """
        info = self._infos.get(queue)
        return None if info is None else _free_at_ms(info)

    @property
    def next_end_ms(self) -> int | None:
        """A time before which no block ends by itself, in epoch ms; None without any block."""
        return self._ends[0][0] if self._ends else None

    def blocks_of(self, group: str, now_ms: int) -> list[tuple[OrderedQueue, OrderBlock]]:
        """Return the blocked queues of the group, with the reasons, sorted."""
        found = []
        for queue in sorted(queue for queue in self._infos if queue.group == group):
            reason = self.block(queue, now_ms)
            if reason is not None:
                found.append((queue, reason))
        return found

    def invisible(self, queue: OrderedQueue, now_ms: int) -> list[tuple[int, int]]:
        """Return the offsets in flight, with the times when they are visible again, in epoch ms."""
        info = self._infos.get(queue)
        return [] if info is None else [one for one in _unacknowledged(info) if one[1] > now_ms]

    def take_ended(self, now_ms: int) -> list[OrderedQueue]:
        """Return the queues whose block has ended by time since the last call."""
        ended = []
        while self._ends and self._ends[0][0] <= now_ms:
            at_ms, queue = heapq.heappop(self._ends)
            if self._end_of.get(queue) != at_ms:
                continue  # a later entry was added for an earlier time
            del self._end_of[queue]
            info = self._infos.get(queue)
            free_at_ms = None if info is None else _free_at_ms(info)
            if info is None or free_at_ms is None:
                continue
            if free_at_ms <= now_ms:
                ended.append(queue)
            else:
                self._note_end(queue, info)
        return ended

    def clear(self, queue: OrderedQueue, now_ms: int) -> None:
        """End the block of the queue: acks and changes of earlier pops have no effect any more."""
        self._infos.pop(queue, None)
        self._cleared_at_ms[queue] = now_ms
        self._changed[queue] = None

    def remove_topic(self, topic: str, now_ms: int) -> None:
        """Clear all queues of the topic."""
        self._clear_each(lambda queue: queue.topic == topic, now_ms)

    def remove_group(self, group: str, now_ms: int) -> None:
        """Clear all queues of the group."""
        self._clear_each(lambda queue: queue.group == group, now_ms)

    def expire(
        self,
        now_ms: int,
        read_queues_of: Callable[[str], int | None],
        has_group: Callable[[str], bool],
    ) -> int:
        """Remove infos that no consumer uses; return their number.

        Args:
            now_ms: the current time; an info expires `IDLE_MS_MAX` after its pop.
            read_queues_of: returns a topic's number of read queues; None if it does not exist.
            has_group: returns whether a group exists.
        """

        def is_unused(queue: OrderedQueue) -> bool:
            count = read_queues_of(queue.topic)
            return count is None or queue.queue_id >= count or not has_group(queue.group)

        gone = [queue for queue in self._infos if is_unused(queue)]
        for queue in gone:
            self.clear(queue, now_ms)
        idle = [
            queue
            for queue, info in self._infos.items()
            if now_ms - info.last_consume_timestamp > IDLE_MS_MAX
        ]
        for queue in idle:
            del self._infos[queue]
            self._changed[queue] = None
        for queue, at_ms in list(self._cleared_at_ms.items()):
            if now_ms - at_ms > IDLE_MS_MAX:
                del self._cleared_at_ms[queue]
                self._changed[queue] = None
        return len(gone) + len(idle)

    def clamp(self, max_offset: Callable[[str, int], int], now_ms: int) -> int:
        """Clear the queues with an info beyond the end of the queue; return their number.

        Must be called once at a start: after a crash that lost the unsynced end of the log, acks of
        the lost messages must not settle the messages that get their offsets.

        Args:
            max_offset: returns the end of a queue by topic and queue id; 0 for a missing queue.
            now_ms: the current time.
        """
        beyond = [
            queue
            for queue, info in self._infos.items()
            if info.offsets and last_offset(info) >= max_offset(queue.topic, queue.queue_id)
        ]
        for queue in beyond:
            self.clear(queue, now_ms)
        return len(beyond)

    @property
    def has_changes(self) -> bool:
        """Whether infos changed since `take_changed`."""
        return bool(self._changed)

    def take_changed(self) -> list[OrderedQueue]:
        """Return the queues whose info changed, or was removed, since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    def _clear_each(self, is_cleared: Callable[[OrderedQueue], bool], now_ms: int) -> None:
        for queue in [queue for queue in self._infos if is_cleared(queue)]:
            self.clear(queue, now_ms)

    def _put(self, queue: OrderedQueue, info: OrderInfo) -> None:
        self._infos[queue] = info
        self._changed[queue] = None
        self._note_end(queue, info)

    def _note_end(self, queue: OrderedQueue, info: OrderInfo) -> None:
        """Add the end of the block to the heap, unless an entry before it is there.

        A block that has become longer is found when its old entry is taken. So a queue that is
        popped all the time has one entry.
        """
        free_at_ms = _free_at_ms(info)
        noted_ms = self._end_of.get(queue)
        if free_at_ms is None or (noted_ms is not None and free_at_ms >= noted_ms):
            return
        self._end_of[queue] = free_at_ms
        heapq.heappush(self._ends, (free_at_ms, queue))
        if len(self._ends) > 2 * len(self._end_of) + _STALE_ENDS_MAX:
            self._ends = [(at_ms, each) for each, at_ms in self._end_of.items()]
            heapq.heapify(self._ends)


def offset_at(info: OrderInfo, index: int) -> int:
    """Return the queue offset of a message by its index in the pop."""
    return info.offsets[0] + (info.offsets[index] if index else 0)


def last_offset(info: OrderInfo) -> int:
    """Return the queue offset of the last message of the pop, which must not be empty."""
    return offset_at(info, len(info.offsets) - 1)


def next_offset(info: OrderInfo) -> int:
    """Return the offset that the group may commit; the pop must not be empty.

    It is the first message that is not acknowledged, or the offset after the last one.
    """
    unset = _unset_bits(info)
    if unset:
        return offset_at(info, (unset & -unset).bit_length() - 1)
    return offset_at(info, min(len(info.offsets), _BITS) - 1) + 1


def _unset_bits(info: OrderInfo) -> int:
    """Return the bits of the messages that are not acknowledged.

    There are 64 bits. A pop has 32 messages at most; further ones of an odd file are ignored, and
    popped again.
    """
    return ((1 << min(len(info.offsets), _BITS)) - 1) & ~info.commit_bits


def _with_bit(info: OrderInfo, index: int) -> OrderInfo:
    """Return the info with one more message acknowledged; the bits are a signed number."""
    bits = (info.commit_bits | 1 << index) & _ALL_BITS
    return replace(info, commit_bits=bits - (1 << _BITS) if bits >> (_BITS - 1) else bits)


def _index_of(info: OrderInfo, queue_offset: int) -> int | None:
    """Return the index of a message in the pop; None if it is none of its messages."""
    offsets = info.offsets[:_BITS]
    if not offsets:
        return None
    difference = queue_offset - offsets[0]
    if difference == 0:
        return 0
    guess = difference if 0 < difference < len(offsets) else 0
    if guess and offsets[guess] == difference:
        return guess
    return offsets.index(difference, 1) if difference in offsets[1:] else None


def _invisible_ms(info: OrderInfo) -> int:
    return max(0, info.invisible_time or 0)


def _unacknowledged(info: OrderInfo) -> Iterator[tuple[int, int]]:
    """Yield the offsets that are not acknowledged, with the times when they are visible again."""
    times = info.next_visible_times or {}
    visible_at_ms = info.pop_time + _invisible_ms(info)
    unset = _unset_bits(info)
    while unset:
        lowest = unset & -unset
        queue_offset = offset_at(info, lowest.bit_length() - 1)
        yield queue_offset, times.get(queue_offset, visible_at_ms)
        unset ^= lowest


def _free_at_ms(info: OrderInfo) -> int | None:
    """Return when all messages are visible again; None if all are acknowledged."""
    if info.next_visible_times:
        return max((visible_at_ms for _, visible_at_ms in _unacknowledged(info)), default=None)
    return info.pop_time + _invisible_ms(info) if _unset_bits(info) else None


def _merged_counts(before: OrderInfo, pop: OrderedPop) -> Mapping[int, int]:
    """Return offset -> number of earlier pops, for the messages of the new pop that have any."""
    counts = before.consumed_counts or {}
    if before.attempt_id is not None and before.attempt_id == pop.attempt_id:
        return counts
    offsets = {offset_at(before, index) for index in range(len(before.offsets))}
    return {offset: counts.get(offset, 0) + 1 for offset in pop.offsets if offset in offsets}


def _time_text(at_ms: int) -> str:
    """Return the time in UTC; times beyond the calendar as a number."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
