"""Where a read begins and ends: offsets as options say them, planned into fixed ranges. Pure.

An offset option is `earliest`, `latest`, or JSON as Spark's Kafka source has it, by topic, broker
and queue; -2 stands for earliest and -1 for latest:

    {"flights": {"broker-a": {"0": 23, "1": -2}}}

The start is inclusive, the end exclusive. Both are settled once, when the read is planned, so
that a task that runs again reads the same messages.
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
"""A task costs tens of milliseconds before its first row; fewer rows are not worth one."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Offsets:
    """What an offset option says.

    Attributes:
        option: its name, for messages.
        everywhere: EARLIEST or LATEST for all queues; None if `by_queue` counts.
        by_queue: (broker name, queue id) to a queue offset, EARLIEST or LATEST.
    """

    option: str
    everywhere: int | None
    by_queue: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> int:
        """Return the queue's offset, EARLIEST or LATEST; the queue must be covered."""
        if self.everywhere is not None:
            return self.everywhere
        return self.by_queue[queue.broker_name, queue.queue_id]


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """What a queue holds: queue offsets from `min_offset` up to, not including, `max_offset`."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Queue offsets from `start` up to, not including, `until`."""

    queue: MessageQueue
    start: int
    until: int

    def __len__(self) -> int:
        return self.until - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of a read, empty ones left out, sorted by queue; and what cannot be read.

    Attributes:
        ranges: clamped to what the queues hold.
        losses: a sentence for each offset asked for by number that its queue does not hold.
    """

    ranges: tuple[QueueRange, ...]
    losses: tuple[str, ...]


def parse_offsets(option: str, text: str, topic: str) -> Offsets:
    """Return what `text` says.

    Raises:
        ConfigError: neither a known word nor JSON of the form above for `topic` alone.
    """
    if (word := text.strip().lower()) in _WORDS:
        return Offsets(option, _WORDS[word])
    try:
        by_topic = json.loads(text, object_pairs_hook=_object_without_repeats)
    except ValueError as error:
        raise ConfigError(
            f"{option} is {text!r}, which is neither earliest nor latest nor JSON: {error}"
        ) from None
    if not isinstance(by_topic, dict) or set(by_topic) != {topic}:
        raise ConfigError(f"{option} is {text!r}: expected offsets of the topic {topic!r} alone")
    return Offsets(option, None, _by_queue(option, by_topic[topic]))


def plan_ranges(
    bounds: Mapping[MessageQueue, QueueBounds], starting: Offsets, ending: Offsets
) -> Plan:
    """Return the ranges to read of queues that hold `bounds`.

    Raises:
        ConfigError: an option's queues are not those of the topic, or a start is above its end.
    """
    for offsets in (starting, ending):
        _check_coverage(offsets, bounds)
    ranges: list[QueueRange] = []
    losses: list[str] = []
    for queue, held in sorted(bounds.items()):
        start, until = starting.of(queue), ending.of(queue)
        if 0 <= until < start:
            raise ConfigError(
                f"{starting.option} of {_name(queue)} is {start}, above {ending.option} {until}"
            )
        for option, offset in ((starting.option, start), (ending.option, until)):
            if offset >= 0 and not held.min_offset <= offset <= held.max_offset:
                losses.append(_loss(queue, option, offset, held))
        planned = QueueRange(queue, _settle(start, held), _settle(until, held))
        if planned.start < planned.until:
            ranges.append(planned)
    return Plan(tuple(ranges), tuple(losses))


def pack_ranges(ranges: Sequence[QueueRange], tasks_max: int) -> list[tuple[QueueRange, ...]]:
    """Return the same offsets, in the same order, as at most `tasks_max` groups of like size.

    A long range may be cut; no group is empty, and none is made for fewer than `TASK_ROWS_MIN`
    offsets if there is another to go to.
    """
    total = sum(map(len, ranges))
    count = max(1, min(tasks_max, total // TASK_ROWS_MIN))
    groups: list[list[QueueRange]] = [[] for _ in range(count)]
    packed = 0
    for whole in ranges:
        start = whole.start
        while start < whole.until:
            group = packed * count // total
            # The first position, counted over all ranges, that belongs to the next group.
            room = -(-(group + 1) * total // count) - packed
            cut = min(whole.until, start + room)
            groups[group].append(QueueRange(whole.queue, start, cut))
            packed += cut - start
            start = cut
    return [tuple(group) for group in groups if group]


def _object_without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _by_queue(option: str, by_broker: object) -> dict[tuple[str, int], int]:
    """Return (broker name, queue id) to offset from {"broker-a": {"0": 23}}."""
    by_queue: dict[tuple[str, int], int] = {}
    for broker_name, by_id in _items(option, by_broker):
        for queue_id, offset in _items(option, by_id):
            if not (queue_id.isascii() and queue_id.isdigit()):
                raise ConfigError(f"{option}: {queue_id!r} of {broker_name!r} is no queue id")
            if type(offset) is not int or offset < EARLIEST:
                raise ConfigError(
                    f"{option}: {offset!r} of queue {queue_id} of {broker_name!r} is no offset: "
                    "0 or more, -2 for earliest, -1 for latest"
                )
            by_queue[broker_name, int(queue_id)] = offset
    return by_queue


def _items(option: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ConfigError(
            f'{option}: expected {{"topic": {{"broker": {{"queue id": offset}}}}}}, '
            f"found {value!r} where an object must be"
        )
    return list(value.items())


def _check_coverage(offsets: Offsets, bounds: Mapping[MessageQueue, QueueBounds]) -> None:
    """Refuse an option that leaves a queue out: its messages would be missed in silence."""
    if offsets.everywhere is not None:
        return
    queues = {(queue.broker_name, queue.queue_id) for queue in bounds}
    for problem, found in (
        ("says nothing of", queues - offsets.by_queue.keys()),
        ("names what the topic does not have:", offsets.by_queue.keys() - queues),
    ):
        if found:
            names = ", ".join(f"{broker}/{queue_id}" for broker, queue_id in sorted(found))
            raise ConfigError(
                f"{offsets.option} {problem} {names}: name each queue of the topic once, "
                "-2 for earliest, -1 for latest"
            )


def _settle(offset: int, held: QueueBounds) -> int:
    if offset == EARLIEST:
        return held.min_offset
    if offset == LATEST:
        return held.max_offset
    return min(max(offset, held.min_offset), held.max_offset)


def _loss(queue: MessageQueue, option: str, offset: int, held: QueueBounds) -> str:
    return (
        f"{option} of {_name(queue)} is {offset}; the queue holds offsets "
        f"{held.min_offset} to {held.max_offset} (exclusive)"
    )


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic!r} on {queue.broker_name!r}"
