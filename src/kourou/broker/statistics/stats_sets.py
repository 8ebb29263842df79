"""Statistics sets of puts and gets: the form of their keys, and the quantity that they count."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple

from kourou.broker.statistics.stats_samples import Growth

Unit = Callable[[Growth], int]

MESSAGES: Final[Unit] = attrgetter("messages")
_BYTES: Final[Unit] = attrgetter("size_bytes")
_TOOK: Final[Unit] = attrgetter("took_ms")


class StatsSet(NamedTuple):
    """One statistics set.

    Attributes:
        key_parts: the names of a key's parts, which are separated by `@`.
        unit: returns the counted quantity from an item's growth.
        is_cold: whether only reads that waited for the device count.
    """

    key_parts: tuple[str, ...]
    unit: Unit
    is_cold: bool = False

    def parse(self, key: str) -> dict[str, str] | None:
        """Return the parts of a key by name; None if the number of parts is wrong."""
        words = key.split("@")
        return (
            dict(zip(self.key_parts, words, strict=True))
            if len(words) == len(self.key_parts)
            else None
        )


SETS: Final = {
    "TOPIC_PUT_NUMS": StatsSet(("topic",), MESSAGES),
    "TOPIC_PUT_SIZE": StatsSet(("topic",), _BYTES),
    "TOPIC_PUT_LATENCY": StatsSet(("queue", "topic"), _TOOK),
    "QUEUE_PUT_NUMS": StatsSet(("topic", "queue"), MESSAGES),
    "QUEUE_PUT_SIZE": StatsSet(("topic", "queue"), _BYTES),
    "GROUP_GET_NUMS": StatsSet(("topic", "group"), MESSAGES),
    "GROUP_GET_SIZE": StatsSet(("topic", "group"), _BYTES),
    "GROUP_GET_LATENCY": StatsSet(("queue", "topic", "group"), _TOOK),
    "GROUP_GET_FROM_DISK_NUMS": StatsSet(("topic", "group"), MESSAGES, is_cold=True),
    "GROUP_GET_FROM_DISK_SIZE": StatsSet(("topic", "group"), _BYTES, is_cold=True),
    "QUEUE_GET_NUMS": StatsSet(("topic", "queue", "group"), MESSAGES),
    "QUEUE_GET_SIZE": StatsSet(("topic", "queue", "group"), _BYTES),
}
"""The sets by the name that request 315 uses."""
