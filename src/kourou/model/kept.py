"""Cache of results computed from sequences, such as a topic's queues or a group's client ids; pure.

Each rebalance, every 20 s, evaluates the same functions on the same lists, which may hold 10,000
queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

KEPT_MAX: Final = 32
"""Cached sequences per function: mostly the queue lists of a consumer's topics."""

T = TypeVar("T")
V = TypeVar("V")


class Kept(Generic[T, V]):
    """Caches the last `KEPT_MAX` results of a function of a sequence.

    A sequence is looked up by identity first, which is cheap, then by its elements. The cache is
    replaced as a whole on each change, so any thread may call `get`.

    Args:
        make: the function; callers must not modify its results.
    """

    def __init__(self, make: Callable[[tuple[T, ...]], V]) -> None:
        self._make = make
        self._kept: tuple[tuple[tuple[T, ...], V], ...] = ()

    def get(self, key: Sequence[T]) -> V:
        """Return the result for `key`, computing it if it is not cached."""
        for known, value in self._kept:
            if known is key:
                return value
        key = tuple(key)  # the caller may modify a list later
        for known, value in self._kept:
            if known == key:
                return value
        value = self._make(key)
        self._kept = ((key, value), *self._kept[: KEPT_MAX - 1])
        return value
