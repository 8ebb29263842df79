"""Which keys of a record the index holds, and their hashes.

    its unique id         `topic#id`       property UNIQ_KEY
    each of its keys      `topic#key`      property KEYS, parted by blanks
    its tags as a whole   `topic#T#tags`   property TAGS

in this order; a rolled back transaction's record is not indexed.

The hash of `a + b` follows from that of `a`. So the hash of a topic, and of all of a key but its
last 8 bytes, is kept: the ids of one producer share that for a minute.

Source: IndexService.buildIndex, IndexFile.indexKeyHashMethod, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
import struct
from enum import Enum
from itertools import chain
from operator import mul
from typing import Final

from kourou.model.properties import KEYS, TAGS, UNIQ_KEY
from kourou.model.sysflag import TRANSACTION_ROLLBACK
from kourou.protocol.hashing import java_string_hash

_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_TAIL_BYTES: Final = 8
_UNITS: Final = struct.Struct(">4H").unpack_from
_ASCII: Final = 128
_SUMS: Final = tuple(range(31 * _ASCII + 256))
_PAIRS: Final = tuple(
    chain.from_iterable(_SUMS[31 * first : 31 * first + 256] for first in range(_ASCII))
)
"""What two bytes, both ASCII, add to a hash, by them as one number; 0.4 MB with shared numbers."""
_POWER_2: Final = 31**2
_POWER_4: Final = 31**4
_POWER_8: Final = 31**8 & _MASK
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(256))

_TOPICS_MAX: Final = 8192
_HEADS_MAX: Final = 1024
"""Topics, and beginnings of keys of each, whose hash is kept; then all of them are forgotten."""

_UNIQ_KEY_NAME, _KEYS_NAME, _TAGS_NAME = UNIQ_KEY.encode(), KEYS.encode(), TAGS.encode()
_UNIQ_KEY, _KEYS, _TAGS = (name + b"\x01" for name in (_UNIQ_KEY_NAME, _KEYS_NAME, _TAGS_NAME))
_FIND_ALL: Final = re.compile(
    rb"(?:\A|\x02)(%b|%b|%b)\x01([^\x02]+)" % (_UNIQ_KEY_NAME, _KEYS_NAME, _TAGS_NAME)
).findall
"""Names and values; of several values of a name the last one counts, and an empty one for none."""


class KeyKind(Enum):
    """What a key that is asked for is."""

    KEY = "K"
    UNIQUE_ID = "U"
    TAG = "T"


def key_hash(topic: str, key: str, kind: KeyKind) -> int:
    """Return the hash under which the index holds the key."""
    text = f"{topic}#T#{key}" if kind is KeyKind.TAG else f"{topic}#{key}"
    return _positive(java_string_hash(text) & _MASK)


def is_indexed(sys_flag: int) -> bool:
    """Tell whether the record's keys are in the index."""
    return sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK


def has_key(properties: bytes, key: bytes, kind: KeyKind) -> bool:
    """Tell whether a record with these properties has the key, character for character."""
    if kind is KeyKind.TAG:
        return _value(properties, _TAGS) == key
    if _value(properties, _UNIQ_KEY) == key:
        return True
    return kind is KeyKind.KEY and key in _value(properties, _KEYS).split(b" ")


def _positive(value: int) -> int:
    """Return the absolute value of 32 bits with a sign; 0 for the one that has none."""
    if value < _SIGN:
        return value
    return 0 if value == _SIGN else _MASK + 1 - value


def _value(properties: bytes, start: bytes) -> bytes:
    """Return a property's value, where `start` is its name and byte 1; the last one counts."""
    before = len(properties)
    while (at := properties.rfind(start, 0, before)) >= 0:
        if not at or properties[at - 1] == 2:
            end = properties.find(b"\x02", at)
            value = properties[at + len(start) :] if end < 0 else properties[at + len(start) : end]
            if value:
                return value
        before = at + len(start) - 1
    return b""


class _TopicHashes:
    """Hashes of one topic's keys."""

    __slots__ = ("base", "heads", "tags", "topic")

    def __init__(self, topic: bytes) -> None:
        self.topic = topic.decode(errors="replace")
        self.base = java_string_hash(f"{self.topic}#") & _MASK
        self.heads: dict[bytes, int] = {}  # of a key without its tail: its part of the hash
        self.tags: dict[bytes, int] = {}

    def of_key(self, key: bytes) -> int:
        """Return the hash of `topic#key`."""
        size = len(key)
        if size < _TAIL_BYTES or not key.isascii():
            return self._of_other(key)
        head = key[:-_TAIL_BYTES]
        start = self.heads.get(head)
        if start is None:
            start = self._add_head(head)
        a, b, c, d = _UNITS(key, size - _TAIL_BYTES)
        value = (
            start + (_PAIRS[a] * _POWER_2 + _PAIRS[b]) * _POWER_4 + _PAIRS[c] * _POWER_2 + _PAIRS[d]
        ) & _MASK
        return value if value < _SIGN else _positive(value)

    def of_tags(self, tags: bytes) -> int:
        """Return the hash of `topic#T#tags`."""
        value = self.tags.get(tags)
        if value is None:
            if len(self.tags) >= _HEADS_MAX:
                self.tags.clear()
            value = self.tags[tags] = self.of_key(b"T#" + tags)
        return value

    def _of_other(self, key: bytes) -> int:
        if key.isascii():
            value = self.base
            for byte in key:
                value = value * 31 + byte
            return _positive(value & _MASK)
        text = key.decode(errors="replace")
        return _positive(java_string_hash(f"{self.topic}#{text}") & _MASK)

    def _add_head(self, head: bytes) -> int:
        if len(self.heads) >= _HEADS_MAX:
            self.heads.clear()
        value, at = self.base, 0
        while at < len(head):
            some = head[at : at + len(_POWERS) - 1]
            value = value * _POWERS[len(some)]
            value = (value + sum(map(mul, some, _POWERS[len(some) - 1 :: -1]))) & _MASK
            at += len(some)
        value = value * _POWER_8 & _MASK
        self.heads[head] = value
        return value


class KeyHashes:
    """Hashes keys, and remembers what those of one topic or producer share."""

    def __init__(self) -> None:
        self._topics: dict[bytes, _TopicHashes] = {}

    def of_record(self, topic: bytes, properties: bytes) -> list[int]:
        """Return the hashes of all keys of a record, in the order of their entries."""
        hashes = self._topics.get(topic)
        if hashes is None:
            hashes = self._add(topic)
        # What `_value` does for each of the three, in one call.
        values = dict(_FIND_ALL(properties))
        found: list[int] = []
        unique_id = values.get(_UNIQ_KEY_NAME)
        if unique_id is not None:
            found.append(hashes.of_key(unique_id))
        keys = values.get(_KEYS_NAME)
        if keys is not None:
            if b" " in keys:
                found += [hashes.of_key(key) for key in keys.split(b" ") if key]
            else:
                found.append(hashes.of_key(keys))
        tags = values.get(_TAGS_NAME)
        if tags is not None:
            tags_hash = hashes.tags.get(tags)
            found.append(hashes.of_tags(tags) if tags_hash is None else tags_hash)
        return found

    def _add(self, topic: bytes) -> _TopicHashes:
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        hashes = self._topics[topic] = _TopicHashes(topic)
        return hashes
