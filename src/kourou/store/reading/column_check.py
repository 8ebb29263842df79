"""Verifies all records of a pull against their queue entries in one pass.

`RecordCheck` verifies one record at a time, in Python at 3 us. This check compares the records of a
pull column by column, each column in one step: 1.2 us a record if all have the same sizes, else
1.9, most of it for the checksum. It covers the records that make up most of a log: first version,
IPv4 hosts, ending in a seal. It returns False if it is not certain; `RecordCheck` then decides
which record is invalid, if any.

A seal is a checksum of the whole record before it, so the body's checksum is not verified.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, islice, repeat
from operator import add, contains, sub
from typing import Final, NamedTuple

from kourou.model.properties import TAGS
from kourou.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.hashing import tags_code, unmasked_crc32
from kourou.protocol.message_layout import HEAD_V4, MAGIC_V1, TAIL_SIZE_V1
from kourou.store.log.record_seal import SEAL, SEAL_BYTES, SEAL_START

_HEAD_FIELDS: Final = "ii4xi4xqqi44xi"
"""Size, magic, queue id, queue offset, own position, sys flag, body size."""
_HEAD: Final = struct.Struct(">" + _HEAD_FIELDS)
_FIELDS: Final = 7
_BODY_AT: Final = HEAD_V4.size
_SIZE_MIN: Final = _BODY_AT + TAIL_SIZE_V1 + SEAL_BYTES
_V6_HOSTS: Final = BORN_HOST_V6 | STORE_HOST_V6
_CRC_BITS: Final = 0x7FFF_FFFF
_TAG_START: Final = f"{TAGS}\x01".encode()
_PAIR_END: Final = b"\x02"
_RECORD_MARK: Final = b"\x0e"
_TAG_MARK: Final = b"\x0f"
_NO_MARKS: Final = bytes(set(range(256)) - {*_RECORD_MARK, *_TAG_MARK})
_NO_TAG: Final = 0
_TAGS_MAX: Final = 1024
_EQUAL_MAX: Final = 64
_LAYOUTS_MAX: Final = 32
"""The most cached layouts, each for at most `_EQUAL_MAX` records and up to 30 KB."""
_SEAL_BACKWARDS: Final = (SEAL % b"%010d")[::-1].replace(b"d010%", b"%010d").decode()
"""A format for a reversed seal: a seal has its digits in reverse order, so reversed it contains a
number that `%` can format."""


class EntryColumns(NamedTuple):
    """Entries of a queue as columns, the fields of `Wanted`.

    Attributes:
        offsets: the queue offsets.
        positions: the records' positions in the log.
        sizes: the records' sizes in bytes.
        codes: the tags codes.
    """

    offsets: tuple[int, ...]
    positions: tuple[int, ...]
    sizes: tuple[int, ...]
    codes: tuple[int, ...]


class ColumnCheck:
    """Verifies records of any queue, on any thread; caches the tags by their codes."""

    def __init__(self) -> None:
        # From a tags code to the encoded property that records with this code contain.
        self._tags = {_NO_TAG: b""}

    def is_certain(self, topic: str, queue_id: int, columns: EntryColumns, body: bytes) -> bool:
        """Tell whether each record certainly is whole and the one to which its entry refers.

        Args:
            topic: the queue's topic.
            queue_id: the queue's id.
            columns: the entries.
            body: the records, one after another.
        """
        offsets, positions, sizes, codes = columns
        count = len(sizes)
        if min(sizes) < _SIZE_MIN or sum(sizes) != len(body) or topic == SCHEDULE_TOPIC:
            return False
        if not body.startswith(SEAL_START, sizes[0] - SEAL_BYTES):
            return False  # unsealed, as Java writes by default: rejected early
        own_sizes, magics, queue_ids, own_offsets, own_positions, flags, body_sizes = _heads(
            body, sizes
        )
        if (
            own_positions != positions
            or own_sizes != sizes
            or own_offsets != offsets
            or magics.count(MAGIC_V1) != count
            or queue_ids.count(queue_id) != count
            or (any(flags) and any(flag & _V6_HOSTS for flag in flags))
        ):
            return False
        field = _topic_field(topic)
        if min(body_sizes) < 0 or min(map(sub, sizes, body_sizes)) < _SIZE_MIN - 1 + len(field):
            return False
        topics, properties, seals = _tails(body, sizes, body_sizes, len(field))
        return (
            topics.count(field) == count
            and b"".join(seals) == _seals(body, sizes)
            and self._are_tagged(properties, codes)
        )

    def _are_tagged(self, properties: Sequence[bytes], codes: Sequence[int]) -> bool:
        """Tell whether each record has the tag of its code, and no other."""
        tags, distinct = self._tags, set(codes)
        if not distinct <= tags.keys():
            tags = self._cache_tags(properties, codes)
            if not distinct <= tags.keys():
                return False
        if len(distinct) == 1:
            return _are_all_tagged(properties, tags[codes[0]])
        # Each record contains the tag of its code, the records together contain no further tags,
        # and no match is the end of a longer property name.
        text = _PAIR_END.join((b"", *properties))
        tagged = len(codes) - codes.count(_NO_TAG)
        return (
            all(map(contains, properties, [tags[code] for code in codes]))
            and text.count(_TAG_START) == tagged
            and text.count(_PAIR_END + _TAG_START) == tagged
        )

    def _cache_tags(self, properties: Sequence[bytes], codes: Sequence[int]) -> dict[int, bytes]:
        """Add the encoded tags of these codes to the cache, if they match; return the cache."""
        tags = self._tags
        if len(tags) + len(codes) > _TAGS_MAX:
            tags = self._tags = {_NO_TAG: b""}  # a new dict: another thread may read the old one
        for code, text in zip(codes, properties, strict=True):
            at = text.find(_TAG_START)
            if at >= 0:
                pair = text[at : text.find(_PAIR_END, at) + 1]
                tag = pair[len(_TAG_START) : -1]
                if tag and code == tags_code(tag.decode(errors="replace")):
                    tags[code] = pair
        return tags


def _are_all_tagged(properties: Sequence[bytes], tag: bytes) -> bool:
    """Tell whether each record has this tag and no other; with an empty tag, whether none has one.

    The joined properties are reduced to marks, one for each record's begin and one for each such
    tag, which takes half the time of a search in each record. Properties that contain a mark byte
    themselves are not certain.
    """
    text = (_RECORD_MARK + _PAIR_END).join((b"", *properties))
    if not tag:
        return _TAG_START not in text
    marks = text.replace(_PAIR_END + tag, _TAG_MARK).translate(None, _NO_MARKS)
    count = len(properties)
    return text.count(_TAG_START) == count and marks == (_RECORD_MARK + _TAG_MARK) * count


def _heads(body: bytes, sizes: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    """Return the header fields as columns."""
    count = len(sizes)
    if sizes.count(sizes[0]) == count <= _EQUAL_MAX:
        fields = _equal_heads(count, sizes[0]).unpack(body)
        return [fields[number::_FIELDS] for number in range(_FIELDS)]
    return zip(
        *map(_HEAD.unpack_from, repeat(body), accumulate(sizes[:-1], initial=0)), strict=True
    )


def _tails(
    body: bytes, sizes: tuple[int, ...], body_sizes: tuple[int, ...], topic_size: int
) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
    """Return three columns: the topics with their sizes, the properties, and the seals."""
    count, body_size = len(sizes), body_sizes[0]
    if sizes.count(sizes[0]) == body_sizes.count(body_size) == count <= _EQUAL_MAX:
        fields = _equal_tails(count, sizes[0], body_size, topic_size).unpack(body)
        return fields[0::3], fields[1::3], fields[2::3]
    ends = list(accumulate(sizes))
    topic_ats = list(map(add, accumulate(sizes[:-1], initial=_BODY_AT), body_sizes))
    return (
        [body[at : at + topic_size] for at in topic_ats],
        [
            body[at + topic_size + 2 : end - SEAL_BYTES]
            for at, end in zip(topic_ats, ends, strict=True)
        ],
        [body[end - SEAL_BYTES : end] for end in ends],
    )


@lru_cache(_LAYOUTS_MAX)
def _equal_heads(count: int, size: int) -> struct.Struct:
    """Return the layout of the headers of `count` records of equal size."""
    return struct.Struct(">" + f"{_HEAD_FIELDS}{size - _BODY_AT}x" * count)


@lru_cache(_LAYOUTS_MAX)
def _equal_tails(count: int, size: int, body_size: int, topic_size: int) -> struct.Struct:
    """Return the layout after the bodies of `count` records with equal sizes and body sizes."""
    start = _BODY_AT + body_size
    properties = size - start - topic_size - 2 - SEAL_BYTES
    return struct.Struct(">" + f"{start}x{topic_size}s2x{properties}s{SEAL_BYTES}s" * count)


def _seals(body: bytes, sizes: tuple[int, ...]) -> bytes:
    """Return the correct seals of records of these sizes.

    One `%` formats all of them reversed; the result is then reversed. This takes a third of the
    time of single calls.
    """
    view = memoryview(body)
    seal_ats = islice(accumulate(sizes, initial=-SEAL_BYTES), 1, None)
    sums = [
        unmasked_crc32(view[start:end]) & _CRC_BITS
        for start, end in zip(accumulate(sizes[:-1], initial=0), seal_ats, strict=True)
    ]
    sums.reverse()
    return (_SEAL_BACKWARDS * len(sums) % tuple(sums))[::-1].encode()


@lru_cache(_TAGS_MAX)
def _topic_field(topic: str) -> bytes:
    """Return a topic encoded as in a record of the first version; longer ones match no record."""
    name = topic.encode()
    return bytes((min(len(name), 255),)) + name
