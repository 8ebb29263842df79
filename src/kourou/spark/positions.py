"""Start and end of a read, as the user names them: words, offsets and times. Pure.

Three options name the start, and three the end. As in Spark's Kafka source, the first that is
given applies:

    startingTimestamp             one time for all queues
    startingOffsetsByTimestamp    JSON: a time for each queue
    startingOffsets               earliest, latest, or JSON: an offset for each queue

JSON names topic, broker and queue. -2 means earliest and -1 latest:

    {"flights": {"broker-a": {"0": 23, "1": -2}}}

A time is epoch milliseconds, ISO 8601 or a span before now (-1h), and means the first message that
was stored then or later. The start is inclusive, the end exclusive. A span becomes an instant when
the options are parsed, which Spark does once for each run of a query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from kourou.errors import ConfigError
from kourou.model.instants import parse_instant
from kourou.model.queue import MessageQueue


class Edge(Enum):
    """An end of a queue."""

    EARLIEST = "earliest"
    """At the oldest message that the queue holds."""
    LATEST = "latest"
    """After the newest message."""


EARLIEST: Final = Edge.EARLIEST
LATEST: Final = Edge.LATEST


@dataclass(frozen=True, slots=True)
class Offset:
    """A queue offset."""

    value: int


@dataclass(frozen=True, slots=True)
class Time:
    """The first message stored at `at_ms` (epoch ms) or later."""

    at_ms: int


Position: TypeAlias = Edge | Offset | Time

_EDGES: Final = {-2: EARLIEST, -1: LATEST}
_QUEUE_ID: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_QUEUE_ID_MAX: Final = 999_999_999
_INT64_MAX: Final = 2**63 - 1
_SHAPE: Final = '{"topic": {"broker": {"queue id": %s}}}'


@dataclass(frozen=True, slots=True)
class Positions:
    """The start or the end of a read in each queue.

    Attributes:
        option: name of the option that applies, for error messages.
        for_all_queues: position in every queue; None if `by_queue` applies.
        by_queue: position in each queue that the option names.
        is_latest_without_match: a Time after a queue's last message means its end. Otherwise it is
            an error.
    """

    option: str
    for_all_queues: Position | None
    by_queue: Mapping[MessageQueue, Position] = field(default_factory=dict)
    is_latest_without_match: bool = True

    def of(self, queue: MessageQueue) -> Position:
        """Return the position in a queue.

        Raises:
            ConfigError: the option does not name the queue.
        """
        if self.for_all_queues is not None:
            return self.for_all_queues
        if queue not in self.by_queue:
            self.check_queues({*self.by_queue, queue})
        return self.by_queue[queue]

    def includes(self, position: Position) -> bool:
        """Return whether `position` is that of at least one queue."""
        return position == self.for_all_queues or position in self.by_queue.values()

    def check_queues(self, queues: Iterable[MessageQueue]) -> None:
        """Refuse an option that does not name exactly `queues`.

        The messages of a queue that the option omits would be missing without a warning.

        Raises:
            ConfigError: a queue is not named, or a named one is not in `queues`.
        """
        if self.for_all_queues is not None:
            return
        existing = set(queues)
        for problem, found in (
            ("does not name", existing - self.by_queue.keys()),
            ("names queues that do not exist:", self.by_queue.keys() - existing),
        ):
            if found:
                names = ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in sorted(found))
                raise ConfigError(
                    f"{self.option} {problem} {names:.200}: name each queue once, "
                    "-2 for earliest, -1 for latest"
                )

    def check_topics(self, topics: Iterable[str]) -> None:
        """Refuse an option that does not name exactly `topics`.

        Raises:
            ConfigError: a topic is missing, or a named one is not in `topics`.
        """
        if self.for_all_queues is not None:
            return
        named, expected = {queue.topic for queue in self.by_queue}, set(topics)
        if named != expected:
            raise ConfigError(
                f"{self.option} has the queues of {_listed(named)}: expected those of the read, "
                f"{_listed(expected)}, and no others"
            )


def parse_offsets(option: str, text: str) -> Positions:
    """Return the positions of startingOffsets or endingOffsets.

    Raises:
        ConfigError: `text` is neither `earliest`, `latest` nor JSON with an offset of each queue.
    """
    word = text.strip().lower()
    if word in (EARLIEST.value, LATEST.value):
        return Positions(option, Edge(word))

    def parse(value: object, of_queue: str) -> Position:
        # A bool is an int, but no offset.
        if type(value) is not int or not min(_EDGES) <= value <= _INT64_MAX:
            raise ConfigError(
                f"{option}: {value!r:.200} of {of_queue} is not an offset: expected 0 or more, "
                "-2 for earliest, -1 for latest"
            )
        return _EDGES.get(value) or Offset(value)

    return Positions(
        option, None, _by_queue(option, text, "earliest, latest or JSON", "offset", parse)
    )


def parse_times_by_queue(option: str, text: str, now_ms: int) -> Positions:
    """Return the positions of startingOffsetsByTimestamp or endingOffsetsByTimestamp.

    Raises:
        ConfigError: `text` is not JSON with a time of each queue.
        UsageError: a time does not parse.
    """

    def parse(value: object, of_queue: str) -> Position:
        if type(value) is int and 0 <= value <= _INT64_MAX:
            return Time(value)
        if not isinstance(value, str):
            raise ConfigError(
                f"{option}: {value!r:.200} of {of_queue} is not a time: expected epoch ms, or text "
                'such as "2025-01-31T12:00" or "-1h"'
            )
        return Time(parse_instant(value, now_ms, f"{option} of {of_queue}"))

    return Positions(option, None, _by_queue(option, text, "JSON", "time", parse))


def parse_time(option: str, text: str, now_ms: int) -> Positions:
    """Return the positions of startingTimestamp or endingTimestamp.

    Raises:
        UsageError: `text` is not a time.
    """
    return Positions(option, Time(parse_instant(text, now_ms, option)))


def parse_assignment(option: str, text: str) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    """Return topic -> broker name -> queue ids of `assign`, ids sorted.

    Raises:
        ConfigError: `text` is not JSON of the form {"topic": {"broker": [0, 1]}}.
    """
    shape = 'expected {"topic": {"broker": [queue id, ...]}}'
    assigned: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, by_broker in _items(option, _load(option, text, "JSON"), shape):
        for broker_name, ids in _items(option, by_broker, shape):
            if not isinstance(ids, list) or not ids or not all(map(_is_queue_id, ids)):
                raise ConfigError(f"{option}: {shape}, found {ids!r:.200} instead of queue ids")
            if len(set(ids)) != len(ids):
                raise ConfigError(f"{option}: {ids!r:.200} of {broker_name!r} repeats a queue id")
            assigned.setdefault(topic, {})[broker_name] = tuple(sorted(ids))
    if not assigned:
        raise ConfigError(f"{option} is {text!r:.200}: {shape}, found no queue")
    return assigned


def _is_queue_id(value: object) -> bool:
    # A bool is an int, but no queue id.
    return type(value) is int and 0 <= value <= _QUEUE_ID_MAX


def _by_queue(
    option: str, text: str, forms: str, noun: str, parse: Callable[[object, str], Position]
) -> dict[MessageQueue, Position]:
    """Return the position of each queue in {"flights": {"broker-a": {"0": value}}}."""
    shape = "expected " + _SHAPE % noun
    by_queue: dict[MessageQueue, Position] = {}
    for topic, broker_name, by_id in _brokers(option, _load(option, text, forms), shape):
        for queue_id, value in _items(option, by_id, shape):
            if not _QUEUE_ID.fullmatch(queue_id):
                raise ConfigError(
                    f"{option}: {queue_id!r:.200} of {broker_name!r} is not a queue id"
                )
            queue = MessageQueue(topic, broker_name, int(queue_id))
            by_queue[queue] = parse(value, f"queue {queue_id} of {topic!r} on {broker_name!r}")
    if not by_queue:
        raise ConfigError(f"{option} is {text!r:.200}: {shape}, found no queue")
    return by_queue


def _brokers(option: str, by_topic: object, shape: str) -> Iterator[tuple[str, str, object]]:
    for topic, by_broker in _items(option, by_topic, shape):
        for broker_name, value in _items(option, by_broker, shape):
            yield topic, broker_name, value


def _load(option: str, text: str, forms: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object_with_unique_keys)
    # RecursionError: thousands of brackets, one within the other.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option} is {text!r:.200}: expected {forms} ({error})") from None


def _object_with_unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _items(option: str, value: object, shape: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: {shape}, found {value!r:.200} instead of an object")
    return list(value.items())


def _listed(topics: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(topics))) or "no topic"
