"""Runs of verified records in bytes of a commit log, found column by column. Pure.

All records of a run are whole, have their own position in the log, and their checksums are valid,
as `kourou.protocol.record.read.read_checked` verifies them one by one, in a quarter of its time.
A run ends before the first record that is not certainly valid; the caller reads that one with
`kourou.store.tools.log_parts.walk_part`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kourou.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from kourou.protocol.hashing import unmasked_crc32
from kourou.protocol.record.layout import (
    CRC_MASK,
    HEAD_BYTES,
    HEAD_FIELDS,
    HEADS,
    HOST_FLAGS,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_SIZE_BYTES,
    RECORD_BYTES_MIN,
    SEAL_BYTES,
    SEAL_DIGITS,
    SEAL_START,
    RecordHeader,
    head_struct,
)

Integers = npt.NDArray[np.int64]

_SIZE: Final = head_struct("total_size").unpack_from
_NAMES: Final = tuple(HEAD_FIELDS)
_FORMS: Final = {"i": ">i4", "q": ">i8", "4s": "S4"}
_HEAD: Final = np.dtype([(name, _FORMS[form]) for name, form in HEAD_FIELDS.items()])
assert _HEAD.itemsize == HEAD_BYTES, "numpy and struct agree on the layout of a head"
_V6_EXTRA: Final = HEADS[BORN_HOST_V6].size - HEAD_BYTES
_STORE_TIME_AT: Final = struct.calcsize(
    ">" + "".join(list(HEAD_FIELDS.values())[: _NAMES.index("store_at_ms")])
)
_BODY_SIZE_AT: Final = HEAD_BYTES - 4
_SEAL_NAME: Final = np.frombuffer(SEAL_START, np.uint8)
_DIGITS_AT: Final = len(SEAL_START)
_DIGITS: Final = slice(_DIGITS_AT, _DIGITS_AT + SEAL_DIGITS)
_POWERS: Final = 10 ** np.arange(SEAL_DIGITS, dtype=np.int64)
"""Weights of a seal's digits, the least significant first."""
_ZERO: Final = ord("0")
_PAIR_END: Final = 2


@dataclass(frozen=True, slots=True)
class LogRun:
    """Verified records that follow one another; a column has one value per record.

    Attributes:
        buffer: the bytes that contain them.
        starts: the byte of the buffer at which each record begins.
        sizes: their sizes in bytes.
        positions: their positions in the log.
        queue_ids: ids of their queues.
        queue_offsets: their offsets in the queues.
        sys_flags: `kourou.model.sysflag`.
        store_at_ms: epoch milliseconds.
        topics: their topics in UTF-8.
    """

    buffer: bytes
    starts: Integers
    sizes: Integers
    positions: Integers
    queue_ids: Integers
    queue_offsets: Integers
    sys_flags: Integers
    store_at_ms: Integers
    topics: list[bytes]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def end(self) -> int:
        """The byte of the buffer after the last record; only of a run that is not empty."""
        return int(self.starts[-1] + self.sizes[-1])


def verified_run(buffer: bytes, at: int, position: int, end: int) -> LogRun:
    """Return the run of records from byte `at` of the buffer, perhaps an empty one.

    Args:
        buffer: bytes of one segment, without those at its end that must be free for a blank.
        at: the byte of the buffer at which the first record begins.
        position: the position of that byte in the log.
        end: position at or after which no record of the run may begin.
    """
    starts = _starts(buffer, at, min(len(buffer), at + end - position), len(buffer))
    if not len(starts):
        return _EMPTY
    heads = _gather(buffer, starts, _HEAD)
    positions, sizes = starts + (position - at), heads["total_size"].astype(np.int64)
    flags, times = heads["sys_flag"].astype(np.int64), heads["store_at_ms"].astype(np.int64)
    body_starts, body_sizes = starts + HEAD_BYTES, heads["body_size"].astype(np.int64)
    if (flags & HOST_FLAGS).any():
        of_born, of_store = (
            np.where(flags & flag, _V6_EXTRA, 0) for flag in (BORN_HOST_V6, STORE_HOST_V6)
        )
        body_starts += of_born + of_store
        times = _integers(buffer, starts + _STORE_TIME_AT + of_born, ">i8")
        body_sizes = _integers(buffer, starts + _BODY_SIZE_AT + of_born + of_store, ">i4")
    body_ends, ends, magics = body_starts + body_sizes, starts + sizes, heads["magic"]
    topics = _topics(buffer, body_ends, magics == MAGIC_V2)
    is_valid = (heads["physical_offset"] == positions) & (body_sizes >= 0)
    is_valid &= (magics == MAGIC_V1) | (magics == MAGIC_V2)
    is_valid &= body_ends + PROPERTIES_SIZE_BYTES < ends
    is_valid &= topics.is_valid & (topics.properties_starts <= ends)
    is_valid &= topics.properties_sizes == ends - topics.properties_starts
    count = _first_false(is_valid)
    names = topics.names(buffer, count)
    records, bodies = (starts[:count], ends[:count]), (body_starts[:count], body_ends[:count])
    crcs = heads["body_crc"][:count]
    count = _verified(buffer, records, bodies, topics.properties_starts[:count], crcs)
    count = min(count, len(names))
    return LogRun(
        buffer,
        starts[:count],
        sizes[:count],
        positions[:count],
        heads["queue_id"][:count].astype(np.int64),
        heads["queue_offset"][:count].astype(np.int64),
        flags[:count],
        times[:count],
        names[:count],
    )


def single_run(record: bytes, header: RecordHeader) -> LogRun:
    """Return the run of one verified record."""

    def column(number: int) -> Integers:
        return np.array([number], np.int64)

    return LogRun(
        record,
        column(0),
        column(header.total_size),
        column(header.physical_offset),
        column(header.queue_id),
        column(header.queue_offset),
        column(header.sys_flag),
        column(header.store_at_ms),
        [header.topic.encode()],
    )


def _starts(buffer: bytes, at: int, stop: int, end: int) -> Integers:
    """Return the bytes at which records begin by the sizes alone, in front of `stop`."""
    starts: list[int] = []
    append, size_at, least, last = starts.append, _SIZE, RECORD_BYTES_MIN, end - RECORD_BYTES_MIN
    stop = min(stop, last + 1)
    while at < stop:
        (size,) = size_at(buffer, at)
        if size < least or at + size > end:
            break
        append(at)
        at += size
    return np.array(starts, np.int64)


def _gather(buffer: bytes, at: Integers, layout: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the value at each index; an index too near to the end has an arbitrary value."""
    kind = np.dtype(layout)
    last = len(buffer) - kind.itemsize
    values: npt.NDArray[Any] = np.ndarray((last + 1,), kind, buffer, strides=(1,))
    return values[np.clip(at, 0, last)]


def _integers(buffer: bytes, at: Integers, layout: str) -> Integers:
    """Return the number at each index as `_gather`."""
    return _gather(buffer, at, layout).astype(np.int64)


def _first_false(values: npt.NDArray[np.bool_]) -> int:
    """Return the number of leading True values."""
    return len(values) if values.all() else int(values.argmin())


class _Topics(NamedTuple):
    """The fields behind the bodies, up to the properties.

    Attributes:
        starts: the byte at which each topic begins; `ends` the one after its last.
        properties_starts: the byte at which the properties begin.
        properties_sizes: their sizes.
        is_valid: whether the topic has a possible size.
    """

    starts: Integers
    ends: Integers
    properties_starts: Integers
    properties_sizes: Integers
    is_valid: npt.NDArray[np.bool_]

    def names(self, buffer: bytes, count: int) -> list[bytes]:
        """Return the first `count` topics, up to the first one that is not UTF-8."""
        bounds = zip(self.starts[:count].tolist(), self.ends[:count].tolist(), strict=True)
        names = [buffer[start:end] for start, end in bounds]
        for name in set(names):
            try:
                name.decode()
            except UnicodeDecodeError:
                count = min(count, names.index(name))
        return names[:count]


def _topics(buffer: bytes, body_ends: Integers, is_v2: npt.NDArray[np.bool_]) -> _Topics:
    """Return the topics that follow the bodies."""
    sizes = _integers(buffer, body_ends, "i1")
    if is_v2.any():
        sizes = np.where(is_v2, _integers(buffer, body_ends, ">i2"), sizes)
    starts = body_ends + 1 + is_v2
    ends = starts + sizes
    properties_sizes = _integers(buffer, ends, ">i2")
    return _Topics(starts, ends, ends + PROPERTIES_SIZE_BYTES, properties_sizes, sizes >= 0)


def _verified(
    buffer: bytes,
    records: tuple[Integers, Integers],
    bodies: tuple[Integers, Integers],
    properties_starts: Integers,
    body_crcs: npt.NDArray[np.generic],
) -> int:
    """Return the number of leading records whose checksum is certainly the right one.

    A record that ends in a seal has the checksum of all bytes before the seal; others have that of
    the body. Records whose end resembles a damaged seal are not certain.
    """
    starts, ends = records
    if not len(starts):
        return 0
    tails = _gather(buffer, ends - SEAL_BYTES, f"V{SEAL_BYTES}").view(np.uint8)
    tails = tails.reshape(-1, SEAL_BYTES)
    has_space = ends - properties_starts >= SEAL_BYTES
    is_sealed = has_space & (tails[:, :_DIGITS_AT] == _SEAL_NAME).all(axis=1)
    digits = tails[:, _DIGITS].astype(np.int64) - _ZERO
    ends_in_digits = (tails[:, -1] == _PAIR_END) & ((digits >= 0) & (digits <= 9)).all(axis=1)
    may_be_damaged = has_space & (tails[:, 0] == 0)
    may_be_damaged |= (ends > properties_starts) & (tails[:, -1] == 0)
    unsealed = np.flatnonzero(has_space & ends_in_digits & ~is_sealed)
    flipped = np.unpackbits(tails[unsealed, :_DIGITS_AT] ^ _SEAL_NAME, axis=1)
    may_be_damaged[unsealed] |= flipped.sum(axis=1) == 1
    is_certain = np.where(is_sealed, ends_in_digits, ~may_be_damaged)
    count = _first_false(is_certain)
    begins = np.where(is_sealed, starts, bodies[0])[:count].tolist()
    stops = np.where(is_sealed, ends - SEAL_BYTES, bodies[1])[:count].tolist()
    view, crc32 = memoryview(buffer), unmasked_crc32
    sums = np.fromiter(
        (crc32(view[begin:stop]) for begin, stop in zip(begins, stops, strict=True)),
        np.int64,
        count,
    )
    expected = np.where(is_sealed, digits @ _POWERS, body_crcs.astype(np.int64))[:count]
    return _first_false((sums & CRC_MASK) == expected)


_NONE: Final[Integers] = np.empty(0, np.int64)
_EMPTY: Final = LogRun(b"", _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, [])
