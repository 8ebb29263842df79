"""Keys of a table of offsets, in the order of their file: sorted by `topic@group`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SEPARATOR: Final = "@"  # neither topics nor groups may contain it

GroupTopic = tuple[str, str]
"""(group, topic)."""


class OffsetKeys:
    """Keeps keys in order between saves: sorting 40,000 of them would block the loop for 20 ms."""

    def __init__(self) -> None:
        self._sorted: list[str] = []
        self._added: list[str] = []

    def add(self, key: GroupTopic) -> None:
        """Add a new key."""
        self._added.append(text_of(key))

    def reset(self, keys: Iterable[GroupTopic]) -> None:
        """Replace all keys."""
        self._sorted, self._added = sorted(map(text_of, keys)), []

    def sorted_keys(self) -> list[str]:
        """Return all keys in order; the list will not be changed."""
        if self._added:
            self._sorted = sorted(self._sorted + self._added)  # almost sorted: takes one pass
            self._added = []
        return self._sorted


def text_of(key: GroupTopic) -> str:
    """Return `topic@group`."""
    return f"{key[1]}{SEPARATOR}{key[0]}"


def key_of(text: str) -> GroupTopic:
    """Return the key for a `topic@group`."""
    topic, _, group = text.rpartition(SEPARATOR)
    return group, topic
