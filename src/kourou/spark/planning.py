"""Fixed ranges of queue offsets, planned from the options and the bounds of the queues. Pure.

The start of a range is inclusive, the end exclusive. Both are fixed when the read is planned, so
that a task that is run again reads the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kourou.errors import ConfigError
from kourou.model.queue import MessageQueue

TASK_ROWS_MIN: Final = 5_000
"""Fewer rows do not justify a task, which costs tens of milliseconds before its first row."""


BrokerTopic: TypeAlias = tuple[str, str]
"""A topic on one broker: (topic, broker name)."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Queue offsets that a queue holds: `min_offset` (inclusive) to `max_offset` (exclusive)."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Queue offsets from `start` (inclusive) to `until` (exclusive).

    Attributes:
        topic_begin: identifies the topic, see `kourou.protocol.offsets.TOPIC_BEGIN_FIELD`; None if
            its broker does not.
    """

    queue: MessageQueue
    start: int
    until: int
    topic_begin: int | None = None

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
    bounds: Mapping[MessageQueue, QueueBounds],
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    *,
    options: tuple[str, str] = ("startingOffsets", "endingOffsets"),
    topic_begins: Mapping[BrokerTopic, int] | None = None,
) -> Plan:
    """Return the ranges to read from queues that hold `bounds`.

    Args:
        bounds: the queues of the read.
        starts: the first offset to read of each queue.
        ends: the offset after the last one to read of each queue.
        options: names of the options with the start and the end, for error messages.
        topic_begins: those of the topics whose brokers identify them.

    Raises:
        ConfigError: the options name a start above its end.
    """
    ranges: list[QueueRange] = []
    losses: list[str] = []
    for queue, held in sorted(bounds.items()):
        start, end = starts[queue], ends[queue]
        if end < start and options == ("startingOffsets", "endingOffsets"):
            raise ConfigError(
                f"{options[0]} of {name_of(queue)} is {start}, above {options[1]} {end}"
            )
        for option, offset in zip(options, (start, end), strict=True):
            if not held.min_offset <= offset <= held.max_offset:
                losses.append(
                    f"{option} of {name_of(queue)} is {offset}; the queue holds offsets "
                    f"{held.min_offset} to {held.max_offset} (exclusive)"
                )
        begin = (topic_begins or {}).get(broker_topic(queue))
        planned = QueueRange(queue, _clamped(start, held), _clamped(end, held), begin)
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
            groups[group].append(replace(whole, start=start, until=cut))
            packed += cut - start
            start = cut
    return [tuple(group) for group in groups if group]


def broker_topic(queue: MessageQueue) -> BrokerTopic:
    """Return the topic and the broker of a queue."""
    return queue.topic, queue.broker_name


def name_of(queue: MessageQueue) -> str:
    """Return the queue's name in errors."""
    return f"queue {queue.queue_id} of {queue.topic!r} on {queue.broker_name!r}"


def _clamped(offset: int, bounds: QueueBounds) -> int:
    return min(max(offset, bounds.min_offset), bounds.max_offset)
