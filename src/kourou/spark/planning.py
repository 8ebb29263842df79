"""Fixed ranges of queue offsets, planned from the options and the bounds of the queues. Pure.

The start of a range is inclusive, the end exclusive. Both are fixed when the read is planned, so
that a task that is run again reads the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.errors import ConfigError
from kourou.model.queue import MessageQueue
from kourou.spark.offsets import EARLIEST, LATEST, Offsets

TASK_ROWS_MIN: Final = 5_000
"""Fewer rows do not justify a task, which costs tens of milliseconds before its first row."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Queue offsets that a queue holds: `min_offset` (inclusive) to `max_offset` (exclusive)."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Queue offsets from `start` (inclusive) to `until` (exclusive)."""

    queue: MessageQueue
    start: int
    until: int

    def __len__(self) -> int:
        return self.until - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of a read, and the requested offsets that cannot be read.

    Attributes:
        ranges: non-empty ranges, clamped to the offsets that the queues hold, sorted by queue.
        losses: one sentence for each numeric offset of an option that its queue does not hold.
    """

    ranges: tuple[QueueRange, ...]
    losses: tuple[str, ...]


def plan_ranges(
    bounds: Mapping[MessageQueue, QueueBounds], starting: Offsets, ending: Offsets
) -> Plan:
    """Return the ranges to read from queues that hold `bounds`.

    Raises:
        ConfigError: the queues of an option differ from the topic's, or a start is above its end.
    """
    for offsets in (starting, ending):
        _check_coverage(offsets, bounds)
    ranges: list[QueueRange] = []
    losses: list[str] = []
    for queue, queue_bounds in sorted(bounds.items()):
        start, until = starting.of(queue), ending.of(queue)
        if 0 <= until < start:
            raise ConfigError(
                f"{starting.option} of {_name(queue)} is {start}, above {ending.option} {until}"
            )
        for option, offset in ((starting.option, start), (ending.option, until)):
            if offset >= 0 and not queue_bounds.min_offset <= offset <= queue_bounds.max_offset:
                losses.append(_loss(queue, option, offset, queue_bounds))
        planned = QueueRange(queue, _resolve(start, queue_bounds), _resolve(until, queue_bounds))
        if planned.start < planned.until:
            ranges.append(planned)
    return Plan(tuple(ranges), tuple(losses))


def pack_ranges(
    ranges: Sequence[QueueRange],
    tasks_max: int,
    *,
    tasks_min: int | None = None,
    rows_max: int | None = None,
) -> list[tuple[QueueRange, ...]]:
    """Return the same offsets, in the same order, as groups of similar size, one for each task.

    A long range may be split. No group is empty. Without `tasks_min` and `rows_max`, each of
    several groups gets at least about `TASK_ROWS_MIN` offsets.

    Args:
        ranges: non-empty ranges.
        tasks_max: maximum number of groups (maxPartitions).
        tasks_min: minimum number of groups, if there are as many offsets (minPartitions).
        rows_max: maximum number of offsets in a group (maxRecordsPerPartition). It takes precedence
            over `tasks_max`, because it bounds the memory of a task.
    """
    total = sum(map(len, ranges))
    count = max(1, min(tasks_max, max(total // TASK_ROWS_MIN, min(tasks_min or 1, total))))
    if rows_max is not None:
        count = max(count, -(-total // rows_max))
    groups: list[list[QueueRange]] = [[] for _ in range(count)]
    packed = 0
    for whole in ranges:
        start = whole.start
        while start < whole.until:
            group = packed * count // total
            # Offsets left in the group; positions are counted over all ranges.
            remaining = -(-(group + 1) * total // count) - packed
            cut = min(whole.until, start + remaining)
            groups[group].append(QueueRange(whole.queue, start, cut))
            packed += cut - start
            start = cut
    return [tuple(group) for group in groups if group]


def _check_coverage(offsets: Offsets, bounds: Mapping[MessageQueue, QueueBounds]) -> None:
    """Refuse an option that does not name exactly the topic's queues.

    The messages of a queue that the option omits would be missing without a warning.
    """
    if offsets.for_all_queues is not None:
        return
    queues = {(queue.broker_name, queue.queue_id) for queue in bounds}
    for problem, found in (
        ("does not name", queues - offsets.by_queue.keys()),
        ("names queues that the topic does not have:", offsets.by_queue.keys() - queues),
    ):
        if found:
            names = ", ".join(f"{broker}/{queue_id}" for broker, queue_id in sorted(found))
            raise ConfigError(
                f"{offsets.option} {problem} {names}: name each queue of the topic once, "
                "-2 for earliest, -1 for latest"
            )


def _resolve(offset: int, bounds: QueueBounds) -> int:
    if offset == EARLIEST:
        return bounds.min_offset
    if offset == LATEST:
        return bounds.max_offset
    return min(max(offset, bounds.min_offset), bounds.max_offset)


def _loss(queue: MessageQueue, option: str, offset: int, bounds: QueueBounds) -> str:
    return (
        f"{option} of {_name(queue)} is {offset}; the queue holds offsets "
        f"{bounds.min_offset} to {bounds.max_offset} (exclusive)"
    )


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic!r} on {queue.broker_name!r}"
