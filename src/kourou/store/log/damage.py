"""Spans of the commit log whose records cannot be read, with whole records behind them."""

from __future__ import annotations

from typing import NamedTuple


class DamagedSpan(NamedTuple):
    """Bytes of one segment that recovery stepped over.

    The queue entries of what was there point at the span: its position, its size, and tags code 0.

    Attributes:
        position: the byte of the log at which it begins.
        size: in bytes, up to the next whole record or the segment's end.
        reason: why the bytes at its start are no record.
    """

    position: int
    size: int
    reason: str
