"""Cache of what properties without unique id and keys mean.

Without these two, most messages have the same properties as the message before. The fast paths of
sends and batches cut the two out of a message's properties and look up the rest here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kourou.model import properties as names

UNIQ_KEY: Final = f"{names.UNIQ_KEY}\x01"
UNIQ_KEY_CHARS: Final = 32
KEYS: Final = f"{names.KEYS}\x01"

CUT_OUT: Final = frozenset({names.UNIQ_KEY, names.KEYS})
"""Properties that are cut out of a message's text: in the rest, they are a second one."""

_SHAPES_MAX: Final = 1024
SHAPE_LENGTH_MAX: Final = 2048
"""Longer texts are not cached: the cache could take 64 MB and more."""

TextT = TypeVar("TextT", str, bytes)
ShapeT = TypeVar("ShapeT")


class Shapes(dict[TextT, ShapeT | None]):
    """Cache: text of properties -> shape, None for unusual ones; computed on first access.

    It has two generations: entries that are used stay, others are dropped.

    Attributes:
        older: the previous generation.
    """

    def __init__(self, compute: Callable[[TextT], ShapeT | None]) -> None:
        """Cache the results of `compute`."""
        super().__init__()
        self._compute: Callable[[TextT], ShapeT | None] = compute
        self.older: dict[TextT, ShapeT | None] = {}

    def __missing__(self, text: TextT) -> ShapeT | None:
        try:
            shape = self.older[text]
        except KeyError:
            shape = self._compute(text)
        if len(self) >= _SHAPES_MAX:
            self.older = dict(self)
            self.clear()
        if len(text) <= SHAPE_LENGTH_MAX:
            self[text] = shape
        return shape
