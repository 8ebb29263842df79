r"""Properties of many records as Arrow columns, found by one search for the separators. Pure.

A properties text is regular if it repeats `name \x01 value \x02` with names and values that are
not empty and contain no separator, is UTF-8, and has each name once. Producers write regular texts;
the caller decodes the others one by one (`kourou.model.properties.decode_properties`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kourou.model.properties import CRC32, KEYS

Integers = npt.NDArray[np.int64]

_IS_REGULAR: Final = re.compile(rb"(?:[^\x01\x02]+\x01[^\x01\x02]+\x02)*").fullmatch
_WORD_BYTES: Final = 8
_WORD: Final = np.dtype("<u8")
_WORD_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)
"""Masks of the first bytes of a word, by their number."""
_MARGIN: Final = bytes(_WORD_BYTES)
"""Bytes around the joined texts, so that a word can be read at any byte of them."""
_MIXERS: Final = tuple(
    np.uint64(odd)
    for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
)
_IS_SPACE: Final = np.array([chr(code).isspace() for code in range(128)] + [False] * 128)
_PIECES: Final = 4
"""Arrow strings of a property: name, separator, value, separator."""


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """The properties of some rows, in the order of the texts.

    Attributes:
        rows: number of rows.
        row: the row of each property.
        sizes: the size of each name, in bytes.
        words: the first eight bytes of each name as a number, zeros behind a shorter one.
        pieces: four strings of each property: name, separator, value, separator. They cover the
            joined texts without gaps; `take` copies those that a column needs.
    """

    rows: int
    row: Integers
    sizes: Integers
    words: npt.NDArray[np.uint64]
    pieces: pa.StringArray

    def find(self, name: str) -> Integers:
        """Return for each row the index of its property of this name, or -1.

        A name of more than eight bytes also finds others of the same size and beginning.
        """
        encoded = name.encode()
        word = int.from_bytes(encoded[:_WORD_BYTES], "little")
        found = np.flatnonzero((self.words == word) & (self.sizes == len(encoded)))
        index = np.full(self.rows, -1, np.int64)
        index[self.row[found]] = found
        return index

    def values(self, index: Integers) -> pa.StringArray:
        """Return the values of properties as found by `find`; null for -1."""
        missing = index < 0
        return self.pieces.take(
            pa.array(index * _PIECES + 2, mask=missing if missing.any() else None)
        )

    def maps(self) -> pa.MapArray:
        """Return the maps of all properties, without the store's checksum of the record."""
        counts = np.bincount(self.row, minlength=self.rows)
        shown = np.arange(len(self.row))
        hidden = self.find(CRC32)
        is_hidden = hidden >= 0
        if is_hidden.any():
            counts -= is_hidden
            shown = np.delete(shown, hidden[is_hidden])
        names, values = shown * _PIECES, shown * _PIECES + 2
        return pa.MapArray.from_arrays(
            _list_offsets(counts), self.pieces.take(names), self.pieces.take(values)
        )

    def keys(self) -> pa.ListArray:
        """Return the lists of index keys: the words of the property KEYS."""
        index = self.find(KEYS)
        is_present = index >= 0
        texts = self.pieces.take(index[is_present] * _PIECES + 2)
        words, counts_present = _split_words(texts)
        counts = np.zeros(self.rows, np.int64)
        counts[is_present] = counts_present
        return pa.ListArray.from_arrays(_list_offsets(counts), words)


def split_properties(texts: Sequence[bytes]) -> tuple[PropertyColumns, Integers]:
    """Return the columns of the properties, and the rows whose texts are not regular.

    The columns are valid only if all texts are regular: otherwise the caller removes those rows,
    and calls again with the others. Distinct long names of a row may count as equal ones.
    """
    joined = b"".join((_MARGIN, *texts, _MARGIN))
    codes = np.frombuffer(joined, np.uint8)
    row_ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts))) + _WORD_BYTES
    # The separators are 1 and 2; a zero becomes 255.
    separators = np.flatnonzero((codes - np.uint8(1)) < 2)
    middles, ends = separators[::2], separators[1::2]
    starts = np.empty_like(ends)
    starts[:1] = _WORD_BYTES
    starts[1:] = ends[:-1] + 1
    last = codes[row_ends - 1]
    if not (
        len(middles) == len(ends)
        and (codes[middles] == 1).all()
        and (codes[ends] == 2).all()
        and (middles > starts).all()
        and (ends > middles + 1).all()
        and ((last == 2) | (np.diff(row_ends, prepend=_WORD_BYTES) == 0)).all()
        and _is_text(joined)
    ):
        return _NONE, np.array([row for row, text in enumerate(texts) if not _is_regular(text)])
    counts = np.diff(np.searchsorted(ends, row_ends), prepend=0)
    row = np.repeat(np.arange(len(texts)), counts)
    sizes = middles - starts
    words = np.ndarray((len(joined) - 7,), _WORD, joined, strides=(1,))
    first = words[starts] & _WORD_MASKS[np.minimum(sizes, _WORD_BYTES)]
    last_words = np.where(sizes > _WORD_BYTES, words[middles - _WORD_BYTES], 0)
    offsets = np.empty(_PIECES * len(ends) + 1, np.int32)
    offsets[0] = _WORD_BYTES
    offsets[1::_PIECES], offsets[2::_PIECES] = middles, middles + 1
    offsets[3::_PIECES], offsets[4::_PIECES] = ends, ends + 1
    pieces = pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(joined)
    )
    columns = PropertyColumns(len(texts), row, sizes, first, pieces)
    return columns, _rows_with_repeats(row, (first, last_words, sizes))


def _rows_with_repeats(row: Integers, names: tuple[npt.NDArray[np.generic], ...]) -> Integers:
    """Return the rows with two equal names; names are equal if all their numbers are equal."""
    mixed = np.zeros(len(row), np.uint64)
    for mixer, numbers in zip(_MIXERS, (row, *names), strict=True):
        mixed ^= mixed >> np.uint64(29)
        mixed += numbers.astype(np.uint64) * mixer
    ordered = np.sort(mixed)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not repeated.size:
        return _NO_ROWS
    return np.unique(row[np.isin(mixed, repeated)])


def _is_regular(text: bytes) -> bool:
    return _IS_REGULAR(text) is not None and _is_text(text)


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _split_words(texts: pa.StringArray) -> tuple[pa.StringArray, Integers]:
    """Return the words of all texts, and the number of words of each, as `str.split` finds them."""
    if not len(texts):
        return texts, _NO_ROWS
    _, offset_buffer, data_buffer = texts.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32)[: len(texts) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[: bounds[-1]]
    if (data > 0x7F).any():  # there are spaces of several bytes
        split = [text.split() for text in texts.to_pylist()]
        counts = np.fromiter(map(len, split), np.int64, len(split))
        return pa.array([word for words in split for word in words], pa.string()), counts
    is_space = _IS_SPACE[data]
    spaces = np.flatnonzero(is_space)
    if not spaces.size:
        return texts, np.ones(len(texts), np.int64)
    starts = np.sort(np.concatenate((bounds[:-1], spaces + 1)))
    ends = np.sort(np.concatenate((spaces, bounds[1:])))
    is_word = ends > starts
    starts, ends = starts[is_word], ends[is_word]
    counts = np.bincount(np.searchsorted(bounds[1:], starts, "right"), minlength=len(texts))
    offsets = _list_offsets(ends - starts).buffers()[1]
    letters = pa.py_buffer(data[~is_space].tobytes())
    return pa.StringArray.from_buffers(len(starts), offsets, letters), counts


def _list_offsets(counts: Integers) -> pa.Int32Array:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.array(offsets)


_NO_ROWS: Final[Integers] = np.empty(0, np.int64)
_NONE: Final = PropertyColumns(
    0, _NO_ROWS, _NO_ROWS, np.empty(0, np.uint64), pa.nulls(0, pa.string())
)
