"""Struct layouts of whole batches: one call packs or unpacks a column of all messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kourou.protocol.record.layout import HEAD_V4, SEAL_BYTES
from kourou.store.formats import ENTRY

_CACHED_CHARS_MAX: Final = 4096
_CACHED_COUNT_MAX: Final = 256
"""A longer format, or one of more records, is compiled on each use, which takes as long as the use
itself."""
_CACHED_MAX: Final = 64
"""Cached layouts, and cached `RecordLayouts`. One of the latter takes at most 150 KB, or 16 KB for
32 records."""

_HEAD: Final = "i4sIiiqq48si"
"""A record's head; the fields that the records of a batch share are one byte string."""
assert struct.calcsize(f">{_HEAD}") == HEAD_V4.size, "the same layout"
_ENTRY: Final = "qiq"
assert struct.calcsize(f">{_ENTRY}") == ENTRY.size, "the same layout"

_Pack = Callable[..., bytes]
_Cut = Callable[[bytes], tuple[Any, ...]]


class RecordLayouts(NamedTuple):
    """Compiled functions that pack and unpack the columns of a given number of records."""

    pack_heads: _Pack
    cut_heads: _Cut
    cut_seals: _Cut
    pack_entries: _Pack
    pack_longs: _Pack


def _record_layouts(count: int) -> RecordLayouts:
    return RecordLayouts(
        struct.Struct(">" + _HEAD * count).pack,
        struct.Struct(f"{HEAD_V4.size}s" * count).unpack,
        struct.Struct(f"{SEAL_BYTES}s" * count).unpack,
        struct.Struct(">" + _ENTRY * count).pack,
        struct.Struct(f">{count}q").pack,
    )


_cached_layout = lru_cache(_CACHED_MAX)(struct.Struct)
_cached_record_layouts = lru_cache(_CACHED_MAX)(_record_layouts)


def layout(form: str) -> struct.Struct:
    """Return the layout of that format, cached if the format is short."""
    return _cached_layout(form) if len(form) <= _CACHED_CHARS_MAX else struct.Struct(form)


def layouts(count: int) -> RecordLayouts:
    """Return the layouts for `count` records, cached if they are few."""
    return _cached_record_layouts(count) if count <= _CACHED_COUNT_MAX else _record_layouts(count)
