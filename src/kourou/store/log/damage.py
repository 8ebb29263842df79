"""Damaged spans of the commit log: unreadable records that whole records follow."""

from __future__ import annotations

from typing import NamedTuple


class DamagedSpan(NamedTuple):
    """Bytes of one segment that recovery skipped.

    The queue entries of the lost records point at the span: its position, its size, and tags
    code 0.

    Attributes:
        position: the byte of the log at which the span begins.
        size: in bytes, up to the next whole record or the segment's end.
        reason: why the bytes at its start are not a valid record.
    """

    position: int
    size: int
    reason: str
