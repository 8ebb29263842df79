"""Whether records of one pull are all the ones that their entries stand for, told of all together.

`RecordCheck` tells it of one record, in Python at 3 us; this of 32 by columns, each compared in one
step: 1.2 us a record where all have the same sizes, else 1.9, most of it for the checksum. It
answers for what is plain, which most of a log is: records of the first version with IPv4 hosts,
each ending in a seal. Where it is not certain it says no, and `RecordCheck` has the say: what is
wrong, or that nothing is.

A seal is a checksum of all of the record before it, so that of the body need not be looked at.
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
"""Layouts kept, for so many records at most, up to 30 KB each."""
_SEAL_BACKWARDS: Final = (SEAL % b"%010d")[::-1].replace(b"d010%", b"%010d").decode()
"""A seal's digits begin with the last one: written backwards, it is a number as `%` writes it."""


class Run(NamedTuple):
    """Entries of a queue, the columns of `Wanted`.

    Attributes:
        offsets: in the queue, of each.
        positions: where in the log each record is.
        sizes: of each, in bytes.
        codes: of the tag of each.
    """

    offsets: tuple[int, ...]
    positions: tuple[int, ...]
    sizes: tuple[int, ...]
    codes: tuple[int, ...]


class SealedRunCheck:
    """Checks the records of any queues, on any thread; keeps the tags that it met."""

    def __init__(self) -> None:
        # From a code to what is in the properties of records that have it.
        self._tags = {_NO_TAG: b""}

    def is_certain(self, topic: str, queue_id: int, run: Run, body: bytes) -> bool:
        """Tell whether each record is the one its entry stands for, and whole, beyond doubt.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            run: the entries.
            body: the records, one behind the other.
        """
        offsets, positions, sizes, codes = run
        count = len(sizes)
        if min(sizes) < _SIZE_MIN or sum(sizes) != len(body) or topic == SCHEDULE_TOPIC:
            return False
        if not body.startswith(SEAL_START, sizes[0] - SEAL_BYTES):
            return False  # as Java writes them; that is worth to be known before the rest
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
        known, kinds = self._tags, set(codes)
        if not kinds <= known.keys():
            known = self._learn(properties, codes)
            if not kinds <= known.keys():
                return False
        if len(kinds) == 1:
            return _are_all_tagged(properties, known[codes[0]])
        # Each that is to have a tag has it, all together have no more, and none of them is the end
        # of a longer name.
        text = _PAIR_END.join((b"", *properties))
        tagged = len(codes) - codes.count(_NO_TAG)
        return (
            all(map(contains, properties, [known[code] for code in codes]))
            and text.count(_TAG_START) == tagged
            and text.count(_PAIR_END + _TAG_START) == tagged
        )

    def _learn(self, properties: Sequence[bytes], codes: Sequence[int]) -> dict[int, bytes]:
        """Keep what tags of these codes look like, of those that are true; return all kept."""
        known = self._tags
        if len(known) + len(codes) > _TAGS_MAX:
            known = self._tags = {_NO_TAG: b""}  # anew: another thread may be looking at them
        for code, text in zip(codes, properties, strict=True):
            at = text.find(_TAG_START)
            if at >= 0:
                pair = text[at : text.find(_PAIR_END, at) + 1]
                tag = pair[len(_TAG_START) : -1]
                if tag and code == tags_code(tag.decode(errors="replace")):
                    known[code] = pair
        return known


def _are_all_tagged(properties: Sequence[bytes], tag: bytes) -> bool:
    """Tell whether each record has this tag and no other, or none has any if it is empty.

    Of all texts together only marks are left, one for each record's begin and for each such tag:
    half of the time of a look into each. A text that has such a byte of its own is in doubt.
    """
    text = (_RECORD_MARK + _PAIR_END).join((b"", *properties))
    if not tag:
        return _TAG_START not in text
    marks = text.replace(_PAIR_END + tag, _TAG_MARK).translate(None, _NO_MARKS)
    count = len(properties)
    return text.count(_TAG_START) == count and marks == (_RECORD_MARK + _TAG_MARK) * count


def _heads(body: bytes, sizes: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    """Return the columns of the heads' fields."""
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
    """Return what is behind the bodies: the topics with their sizes, the properties, the seals."""
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
    """Return the layout of so many records of a size, as far as their heads go."""
    return struct.Struct(">" + f"{_HEAD_FIELDS}{size - _BODY_AT}x" * count)


@lru_cache(_LAYOUTS_MAX)
def _equal_tails(count: int, size: int, body_size: int, topic_size: int) -> struct.Struct:
    """Return their layout behind the bodies, which are of one size as well."""
    start = _BODY_AT + body_size
    properties = size - start - topic_size - 2 - SEAL_BYTES
    return struct.Struct(">" + f"{start}x{topic_size}s2x{properties}s{SEAL_BYTES}s" * count)


def _seals(body: bytes, sizes: tuple[int, ...]) -> bytes:
    """Return the seals that records of these sizes should have.

    All are written by one `%`, backwards, and turned: a third of the time of one by one.
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
    """Return a topic as records of the first version have it; longer ones are in none of them."""
    name = topic.encode()
    return bytes((min(len(name), 255),)) + name
