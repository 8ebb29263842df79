"""The statistics sets that puts and gets go into: how their keys read, and what they count."""

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
    """One set.

    Attributes:
        form: what the parts of a key are, which `@` parts.
        unit: what of an item's growth is told.
        is_cold: it counts only reads that waited for the device.
    """

    form: tuple[str, ...]
    unit: Unit
    is_cold: bool = False

    def parse(self, key: str) -> dict[str, str] | None:
        """Return `topic`, and `group` and `queue` if the key has them; None if it is no key."""
        words = key.split("@")
        return dict(zip(self.form, words, strict=True)) if len(words) == len(self.form) else None


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
"""By the name that request 315 gives."""
