"""Start and end of a read: offset options, and the fixed ranges planned from them. Pure.

An offset option is `earliest`, `latest`, or JSON in the form of Spark's Kafka source, by topic,
broker and queue, where -2 means earliest and -1 latest:

    {"flights": {"broker-a": {"0": 23, "1": -2}}}

The start is inclusive, the end exclusive. Both are fixed when the read is planned, so that a task
that is run again reads the same messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import ConfigError
from kourou.model.queue import MessageQueue

EARLIEST: Final = -2
LATEST: Final = -1

TASK_ROWS_MIN: Final = 5_000
"""Fewer rows do not justify a task, which costs tens of milliseconds before its first row."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Offsets:
    """The parsed value of an offset option.

    Attributes:
        option: name of the option, for error messages.
        for_all_queues: EARLIEST or LATEST for all queues; None if `by_queue` applies.
        by_queue: (broker name, queue id) to a queue offset, EARLIEST or LATEST.
    """

    option: str
    for_all_queues: int | None
    by_queue: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> int:
        """Return the queue's offset, EARLIEST or LATEST; the option must cover the queue."""
        if self.for_all_queues is not None:
            return self.for_all_queues
        return self.by_queue[queue.broker_name, queue.queue_id]


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


def parse_offsets(option: str, text: str, topic: str) -> Offsets:
    """Return the parsed value of an offset option.

    Raises:
        ConfigError: `text` is neither a known word nor JSON of the form above for `topic` alone.
    """
    if (word := text.strip().lower()) in _WORDS:
        return Offsets(option, _WORDS[word])
    try:
        by_topic = json.loads(text, object_pairs_hook=_object_with_unique_keys)
    except ValueError as error:
        raise ConfigError(
            f"{option} is {text!r}: expected earliest, latest or JSON ({error})"
        ) from None
    if not isinstance(by_topic, dict) or set(by_topic) != {topic}:
        raise ConfigError(
            f"{option} is {text!r}: expected an object with the offsets of the topic {topic!r} only"
        )
    return Offsets(option, None, _by_queue(option, by_topic[topic]))


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


def pack_ranges(ranges: Sequence[QueueRange], tasks_max: int) -> list[tuple[QueueRange, ...]]:
    """Return the same offsets, in the same order, as at most `tasks_max` groups of similar size.

    A long range may be split. No group is empty, and with more than one group each gets at least
    about `TASK_ROWS_MIN` offsets.
    """
    total = sum(map(len, ranges))
    count = max(1, min(tasks_max, total // TASK_ROWS_MIN))
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


def _object_with_unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _by_queue(option: str, by_broker: object) -> dict[tuple[str, int], int]:
    """Return (broker name, queue id) to offset from {"broker-a": {"0": 23}}."""
    by_queue: dict[tuple[str, int], int] = {}
    for broker_name, by_id in _items(option, by_broker):
        for queue_id, offset in _items(option, by_id):
            if not (queue_id.isascii() and queue_id.isdigit()):
                raise ConfigError(f"{option}: {queue_id!r} of {broker_name!r} is not a queue id")
            if type(offset) is not int or offset < EARLIEST:
                raise ConfigError(
                    f"{option}: {offset!r} of queue {queue_id} of {broker_name!r} is not an "
                    "offset: expected 0 or more, -2 for earliest, -1 for latest"
                )
            by_queue[broker_name, int(queue_id)] = offset
    return by_queue


def _items(option: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ConfigError(
            f'{option}: expected {{"topic": {{"broker": {{"queue id": offset}}}}}}, '
            f"found {value!r} instead of an object"
        )
    return list(value.items())


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
