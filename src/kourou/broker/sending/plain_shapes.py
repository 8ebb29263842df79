"""Cache of what properties without unique id and keys mean.

Without these two, most messages have the same properties as the message before. The fast paths of
sends and batches cut the two out of a message's properties and look up the rest here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kourou.broker.sending.verdicts import judge_message
from kourou.broker.transactions.plain_halves import plain_group
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.protocol.hashing import tags_code

UNIQ_KEY: Final = f"{names.UNIQ_KEY}\x01"
UNIQ_KEY_CHARS: Final = 32
KEYS: Final = f"{names.KEYS}\x01"

CUT_OUT: Final = frozenset({names.UNIQ_KEY, names.KEYS})
"""Properties that are cut out of a message's text: in the rest, they are a second one."""

_SHAPES_MAX: Final = 1024
SHAPE_LENGTH_MAX: Final = 2048
"""Longer texts are not cached: the cache could take 64 MB and more."""

SendShape = tuple[int, str, str, str]
"""Tag hash, message type, tags or "", and for half messages the group that may end them, else "".
Shared by all messages whose properties differ only in unique id, keys and born time."""

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


def send_shape(rest: str, *, takes_halves: bool) -> SendShape | None:
    """Return the shape of properties without those that are cut out; None if they are unusual.

    A text that the general path would not store as it is counts as unusual too.
    """
    properties = decode_properties(rest.encode())
    verdict = judge_message(properties)
    if (
        encode_properties(properties).decode() != rest
        or not names.VARYING.isdisjoint(properties)
        or not verdict.is_unchanged
        or not verdict.waits_for_sync
    ):
        return None
    group = ""
    if names.TRAN_MSG in properties:
        group = plain_group(properties) if takes_halves and verdict.is_half else ""
        if not group:
            return None
    tags = properties.get(names.TAGS, "")
    return tags_code(tags), verdict.type, tags, group
