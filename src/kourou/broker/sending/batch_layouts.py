"""Struct layouts of whole batches: one call packs or unpacks a column of all messages.

Those of the records are in `kourou.protocol.record.encode`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from kourou.store.formats import ENTRY

_CACHED_CHARS_MAX: Final = 4096
_CACHED_COUNT_MAX: Final = 256
"""A longer format, or one of more records, is compiled on each use, which takes as long as the use
itself."""
_CACHED_MAX: Final = 64
"""Cached layouts, and cached `ColumnLayouts`. One of the latter takes at most 50 KB."""

_ENTRY: Final = "qiq"
assert struct.calcsize(f">{_ENTRY}") == ENTRY.size, "the same layout"

_Pack = Callable[..., bytes]


class ColumnLayouts(NamedTuple):
    """Compiled functions that pack columns of a given number of records: queue entries, numbers."""

    pack_entries: _Pack
    pack_longs: _Pack


def _column_layouts(count: int) -> ColumnLayouts:
    return ColumnLayouts(
        struct.Struct(">" + _ENTRY * count).pack,
        struct.Struct(f">{count}q").pack,
    )


_cached_layout = lru_cache(_CACHED_MAX)(struct.Struct)
_cached_column_layouts = lru_cache(_CACHED_MAX)(_column_layouts)


def layout(form: str) -> struct.Struct:
    """Return the layout of that format, cached if the format is short."""
    return _cached_layout(form) if len(form) <= _CACHED_CHARS_MAX else struct.Struct(form)


def layouts(count: int) -> ColumnLayouts:
    """Return the layouts for `count` records, cached if they are few."""
    return _cached_column_layouts(count) if count <= _CACHED_COUNT_MAX else _column_layouts(count)
