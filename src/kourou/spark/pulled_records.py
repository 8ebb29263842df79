"""Records of pulls as columns: the fields of all heads gathered by numpy in a few steps. Pure.

The types of the heads are derived from `kourou.protocol.record.layout`, so that the layout has one
home. Heads of both versions, with IPv4 and IPv6 hosts, may follow one another in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kourou.protocol.hashing import unmasked_crc32
from kourou.protocol.record.layout import (
    CRC_MASK,
    HEAD_BYTES_MAX,
    HEADS,
    HOST_FLAGS,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_SIZE,
    PROPERTIES_SIZE_BYTES,
    RECORD_BYTES_MIN,
    RECORD_START,
    TOPIC_SIZE_V2,
    head_fields,
)
from kourou.spark.property_columns import Integers

Flags = npt.NDArray[np.bool_]

_FORMATS: Final = {"i": ">i4", "q": ">i8", "4s": "V4", "16s": "V16"}
_HEAD_TYPES: Final = {
    flags: np.dtype([(name, _FORMATS[form]) for name, form in head_fields(flags).items()])
    for flags in HEADS
}
assert all(_HEAD_TYPES[flags].itemsize == head.size for flags, head in HEADS.items())
_NUMBERS: Final = (
    "total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset",
    "sys_flag", "born_at_ms", "store_at_ms", "reconsume_times", "body_size",
)  # fmt: skip
"""The fields of a head that checks and columns need."""
_HEAD_SIZES: Final = np.zeros(HOST_FLAGS + 1, np.int64)
_HOST_SIZES: Final = np.zeros(HOST_FLAGS + 1, np.int64)
"""Sizes of a head and of the producer's address with its port in it, by `HOST_FLAGS`."""
_STORE_HOSTS_AT: Final = np.zeros(HOST_FLAGS + 1, np.int64)
_STORE_HOST_SIZES: Final = np.zeros(HOST_FLAGS + 1, np.int64)
"""First byte and size of the broker's address with its port in a head, by `HOST_FLAGS`."""
for _flags, _type in _HEAD_TYPES.items():
    _STORE_HOSTS_AT[_flags] = _type.fields["store_address"][1]  # type: ignore[index]
    _STORE_HOST_SIZES[_flags] = _type["store_address"].itemsize + _type["store_port"].itemsize
    _HEAD_SIZES[_flags] = _type.itemsize
    _HOST_SIZES[_flags] = _type["born_address"].itemsize + _type["born_port"].itemsize
_HEX_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_POSITION: Final = np.dtype(">i8")
BORN_HOST: Final = _HEAD_TYPES[0].fields["born_address"][1]  # type: ignore[index]
"""The first byte of the producer's address in any head."""
MARGIN_BYTES: Final = HEAD_BYTES_MAX
"""Bytes needed behind the records, so that a whole head can be read at any byte of them."""
_SIZE_TYPE: Final = np.dtype(">i2")
assert _SIZE_TYPE.itemsize == PROPERTIES_SIZE.size == TOPIC_SIZE_V2.size


@dataclass(frozen=True, slots=True)
class Records:
    """The records of some answers, as columns.

    Attributes:
        data: bytes that contain the records of all answers, and a margin.
        answer: the index of each record's answer.
        starts: the first byte of each record; `ends` the one after its last.
        fields: the numbers of the heads, by name.
        host_sizes: the size of the producer's address with its port, in bytes.
        is_whole: whether the sizes agree with each other, and the magic is known. The last record
            of an answer may be the torn rest of it.
    """

    data: bytes
    answer: Integers
    starts: Integers
    ends: Integers
    fields: dict[str, Integers]
    host_sizes: Integers
    body_starts: Integers
    topic_starts: Integers
    topic_sizes: Integers
    properties_starts: Integers
    is_whole: Flags

    @classmethod
    def read(cls, answers: Sequence[bytes]) -> Records:
        """Return the records of the answers; their bytes behind the sizes are not verified."""
        ends = [*accumulate(map(len, answers), initial=0)]
        return cls.parse(b"".join((*answers, bytes(MARGIN_BYTES))), [*pairwise(ends)])

    @classmethod
    def parse(cls, data: bytes, bounds: Sequence[tuple[int, int]]) -> Records:
        """Return the records of the answers in these parts of the data, which follow one another.

        The data has at least `MARGIN_BYTES` bytes behind the last part.
        """
        first_bytes: list[int] = []
        counts: list[int] = []
        end = 0
        for at, end in bounds:
            before = len(first_bytes)
            _append_starts(data, at, end, first_bytes)
            counts.append(len(first_bytes) - before)
        starts = np.array(first_bytes, np.int64)
        ends = np.append(starts[1:], end)
        fields, host_flags = _read_heads(data, starts)
        head_sizes = _HEAD_SIZES[host_flags]
        body_starts = starts + head_sizes
        body_ends = body_starts + fields["body_size"]
        sizes_at = np.ndarray((len(data) - 1,), _SIZE_TYPE, data, strides=(1,))
        safe = np.clip(body_ends, 0, end)
        topic_sizes = np.frombuffer(data, np.int8)[safe].astype(np.int64)
        topic_starts = body_ends + 1
        is_v2 = fields["magic"] == MAGIC_V2
        if is_v2.any():
            topic_sizes[is_v2] = sizes_at[safe[is_v2]]
            topic_starts += is_v2
        topic_ends = topic_starts + topic_sizes
        properties_starts = topic_ends + PROPERTIES_SIZE_BYTES
        properties_sizes = sizes_at[np.clip(topic_ends, 0, end)]
        is_whole = (
            (fields["total_size"] == ends - starts)
            & ((fields["magic"] == MAGIC_V1) | is_v2)
            & (fields["body_size"] >= 0)
            & (topic_sizes >= 0)
            & (properties_sizes >= 0)
            & (properties_starts + properties_sizes == ends)
        )
        return cls(
            data,
            np.repeat(np.arange(len(bounds)), counts),
            starts,
            ends,
            fields,
            _HOST_SIZES[host_flags],
            body_starts,
            topic_starts,
            topic_sizes,
            properties_starts,
            is_whole,
        )

    def parts(self, starts: Integers, ends: Integers) -> Iterator[bytes]:
        """Return an iterator of parts of the data."""
        return map(self.data.__getitem__, map(slice, starts.tolist(), ends.tolist()))

    def checksums(self, starts: Integers, ends: Integers) -> Integers:
        """Return the checksums of parts of the data, as records store them."""
        view = memoryview(self.data)
        parts = map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        return np.fromiter(map(unmasked_crc32, parts), np.int64, len(starts)) & CRC_MASK

    def offset_msg_ids(self, index: Integers) -> pa.StringArray:
        """Return the offset message ids of records (`kourou.model.msgid`)."""
        host_flags = self.fields["sys_flag"][index] & HOST_FLAGS
        hosts_at = self.starts[index] + _STORE_HOSTS_AT[host_flags]
        sizes = _STORE_HOST_SIZES[host_flags]
        columns, rows = [], []
        for size in np.unique(sizes).tolist():
            chosen = np.flatnonzero(sizes == size)
            hosts = _windows(self.data, np.dtype(f"V{size}"))[hosts_at[chosen]]
            positions = self.fields["physical_offset"][index[chosen]].astype(_POSITION)
            columns.append(_hex_column(hosts, positions))
            rows.append(chosen)
        if len(columns) == 1:
            return columns[0]
        return pa.concat_arrays(columns).take(pa.array(np.argsort(np.concatenate(rows))))

    def texts(
        self, starts: Integers, sizes: Integers, decode: Callable[[bytes], str]
    ) -> pa.StringArray:
        """Return a column of texts that repeat; `decode` is called for each distinct one."""
        first = self.data[starts[0] : starts[0] + sizes[0]]
        if (sizes == len(first)).all():
            windows = _windows(self.data, np.dtype(f"V{len(first) or 1}"))[starts]
            if not first or windows.tobytes() == first * len(starts):
                return pa.repeat(pa.scalar(decode(first), pa.string()), len(starts))
        parts = list(self.parts(starts, starts + sizes))
        decoded = {part: decode(part) for part in set(parts)}
        return pa.array([decoded[part] for part in parts], pa.string())


def _append_starts(data: bytes, at: int, end: int, starts: list[int]) -> None:
    """Append the start of each record from `at` to `end`; a torn rest counts as one record."""
    read_start = RECORD_START.unpack_from
    while at < end:
        starts.append(at)
        size, _ = read_start(data, at)
        if not RECORD_BYTES_MIN <= size <= end - at:
            break
        at += size


def _read_heads(data: bytes, starts: Integers) -> tuple[dict[str, Integers], Integers]:
    """Return the numbers of all heads by name, and the `HOST_FLAGS` of each."""
    heads = _windows(data, _HEAD_TYPES[0])[starts]
    fields = {name: heads[name].astype(np.int64) for name in _NUMBERS}
    host_flags = fields["sys_flag"] & HOST_FLAGS  # it precedes the addresses
    if host_flags.any():
        for flags in np.unique(host_flags[host_flags > 0]).tolist():
            chosen = np.flatnonzero(host_flags == flags)
            heads = _windows(data, _HEAD_TYPES[flags])[starts[chosen]]
            for name in _NUMBERS:
                fields[name][chosen] = heads[name]
    return fields, host_flags


def _hex_column(*numbers: npt.NDArray[np.generic]) -> pa.StringArray:
    """Return the bytes of the numbers of each row, one after the other, as hexadecimal texts."""
    rows = [one.view(np.uint8).reshape(len(one), -1) for one in numbers]
    codes = np.concatenate(rows, axis=1)
    digits = _HEX_DIGITS[np.stack((codes >> 4, codes & 15), axis=2)]
    offsets = np.arange(len(codes) + 1, dtype=np.int32) * np.int32(2 * codes.shape[1])
    return pa.StringArray.from_buffers(
        len(codes), pa.py_buffer(offsets), pa.py_buffer(digits.tobytes())
    )


def _windows(data: bytes, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Return an array with the value of this type at each byte of the data."""
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data, strides=(1,))
