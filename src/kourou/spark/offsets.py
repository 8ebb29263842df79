"""Offset options: where a read starts and ends. Pure.

An offset option is `earliest`, `latest`, or JSON in the form of Spark's Kafka source, by topic,
broker and queue, where -2 means earliest and -1 latest:

    {"flights": {"broker-a": {"0": 23, "1": -2}}}

The start is inclusive, the end exclusive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import ConfigError
from kourou.model.queue import MessageQueue

EARLIEST: Final = -2
LATEST: Final = -1

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
