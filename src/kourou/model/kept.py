"""Results that are found again by what they were made of: queues of a topic, ids of a group; pure.

Rebalance passes ask the same of the same lists each 20 s, and lists of 10,000 queues are long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

KEPT_MAX: Final = 32
"""Lists whose results are kept: those of a consumer's topics, mostly."""

T = TypeVar("T")
V = TypeVar("V")


class Kept(Generic[T, V]):
    """The last few results of a function of a sequence.

    A tuple is found by identity, which costs nothing, or else by its elements. Results are replaced
    as a whole, so that any thread may ask.

    Args:
        make: the function; what it returns must not be changed.
    """

    def __init__(self, make: Callable[[tuple[T, ...]], V]) -> None:
        self._make = make
        self._kept: tuple[tuple[tuple[T, ...], V], ...] = ()

    def get(self, key: Sequence[T]) -> V:
        """Return the result for `key`, made now if it is not known."""
        for known, value in self._kept:
            if known is key:
                return value
        key = tuple(key)  # a list may change later
        for known, value in self._kept:
            if known == key:
                return value
        value = self._make(key)
        self._kept = ((key, value), *self._kept[: KEPT_MAX - 1])
        return value
