"""Cache of results computed from sequences, such as a topic's queues or a group's client ids; pure.

Each rebalance, every 20 s, evaluates the same functions on the same lists, which may hold 10,000
queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

SEQUENCES_MAX: Final = 32
"""Cached sequences per function: mostly the queue lists of a consumer's topics."""

T = TypeVar("T")
V = TypeVar("V")


class SequenceCache(Generic[T, V]):
    """Caches the last `SEQUENCES_MAX` results of a function of a sequence.

    A sequence is looked up by identity first, which is cheap, then by its elements. The cache is
    replaced as a whole on each change, so any thread may call `get`.

    Args:
        compute: the function; callers must not modify its results.
    """

    def __init__(self, compute: Callable[[tuple[T, ...]], V]) -> None:
        self._compute = compute
        self._entries: tuple[tuple[tuple[T, ...], V], ...] = ()

    def get(self, key: Sequence[T]) -> V:
        """Return the result for `key`, computing it if it is not cached."""
        for cached, value in self._entries:
            if cached is key:
                return value
        key = tuple(key)  # the caller may modify a list later
        for cached, value in self._entries:
            if cached == key:
                return value
        value = self._compute(key)
        self._entries = ((key, value), *self._entries[: SEQUENCES_MAX - 1])
        return value
