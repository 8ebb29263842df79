"""Indexed keys of a record, and their hashes.

A record has an entry for each of these, in this order:

    its unique id         `topic#id`       property UNIQ_KEY
    each of its keys      `topic#key`      property KEYS, separated by blanks
    its tags as a whole   `topic#T#tags`   property TAGS

The record of a rolled back transaction has none.

The hash of `a + b` is computed from the hash of `a`. Therefore the hashes of topics, and of keys
without their last 8 bytes, are cached: the ids of one producer share this part for a minute. The
last 8 bytes of many keys are hashed at once by `index_lanes.py`.

Source: IndexService.buildIndex, IndexFile.indexKeyHashMethod, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from enum import Enum
from operator import mul
from typing import Final

from kourou.model.properties import KEYS, TAGS, UNIQ_KEY
from kourou.model.sysflag import TRANSACTION_ROLLBACK
from kourou.protocol.hashing import java_string_hash
from kourou.store.index.index_lanes import LANE_BYTES, NO_TAIL, lane_hashes

_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_PIECE_BYTES: Final = 256
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_PIECE_BYTES + 1))
_TAIL_POWER: Final = _POWERS[LANE_BYTES]

_TOPICS_MAX: Final = 8192
_CACHED_MAX: Final = 32_768
"""Limits of cached topics, and of cached heads of keys and tags over all topics: 7 MB. The cache is
cleared when full."""

_UNIQ_KEY_NAME, _KEYS_NAME, _TAGS_NAME = UNIQ_KEY.encode(), KEYS.encode(), TAGS.encode()
_UNIQ_KEY, _KEYS, _TAGS = (name + b"\x01" for name in (_UNIQ_KEY_NAME, _KEYS_NAME, _TAGS_NAME))
_FIND_ALL: Final = re.compile(
    rb"\x02(%b|%b|%b)\x01([^\x02]+)" % (_UNIQ_KEY_NAME, _KEYS_NAME, _TAGS_NAME)
).findall
"""Returns names and values of the three properties. Each must have a byte 2 before it, to which the
search jumps. Empty values are omitted; of several with one name, the last one counts."""


class KeyKind(Enum):
    """The kind of a key in a query."""

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
    """Tell whether a record with these properties has exactly this key."""
    if kind is KeyKind.TAG:
        return _value(properties, _TAGS) == key
    if _value(properties, _UNIQ_KEY) == key:
        return True
    return kind is KeyKind.KEY and key in _value(properties, _KEYS).split(b" ")


def _positive(value: int) -> int:
    """Return the absolute value of a signed 32-bit number; 0 for -2 ** 31, which has none."""
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


class TopicHashes:
    """Cached hashes of one topic's keys.

    Attributes:
        base: the hash of `topic#`.
        heads: by a key without its last 8 bytes: the hash of `topic#` and these bytes, times
            31 ** 8. ASCII without blanks, so that a cached head followed by 8 bytes without a
            blank is a single key.
        tags: by tags: the hash of `topic#T#tags`.
    """

    __slots__ = ("base", "heads", "name", "tags")

    def __init__(self, topic: bytes) -> None:
        self.name = topic.decode(errors="replace")
        self.base = java_string_hash(f"{self.name}#") & _MASK
        self.heads: dict[bytes, int] = {}
        self.tags: dict[bytes, int] = {}


class KeyHashes:
    """Hashes keys, and caches the parts that keys of one topic or producer share.

    A key's hash is returned as a start and a tail, which `lane_hashes` combines.

    Attributes:
        cache_resets: how often the cache was cleared.
    """

    def __init__(self) -> None:
        self.cache_resets = 0
        self._topics: dict[bytes, TopicHashes] = {}
        self._cached = 0

    def of_record(self, topic: bytes, properties: bytes) -> list[int]:
        """Return the hashes of all keys of a record, in the order of their entries."""
        starts: list[int] = []
        tails: list[bytes] = []
        self.add_record(self.topic(topic), properties, starts, tails)
        return list(lane_hashes(starts, b"".join(tails)))

    def topic(self, name: bytes) -> TopicHashes:
        """Return the cached hashes of a topic."""
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._clear_cache()
            topic = self._topics[name] = TopicHashes(name)
        return topic

    def add_record(
        self, topic: TopicHashes, properties: bytes, starts: list[int], tails: list[bytes]
    ) -> None:
        """Append starts and tails of the hashes of all keys of a record, in the entries' order."""
        # The same values as `_value` returns for each of the three, in one call.
        values = dict(_FIND_ALL(b"\x02" + properties))
        unique_id = values.get(_UNIQ_KEY_NAME)
        if unique_id is not None:
            self._add_key(topic, unique_id, starts, tails)
        keys = values.get(_KEYS_NAME)
        if keys is not None:
            for key in keys.split(b" ") if b" " in keys else (keys,):
                if key:
                    self._add_key(topic, key, starts, tails)
        tags = values.get(_TAGS_NAME)
        if tags is not None:
            starts.append(self.tags_hash(topic, tags))
            tails.append(NO_TAIL)

    def tags_hash(self, topic: TopicHashes, tags: bytes) -> int:
        """Return the hash of `topic#T#tags`."""
        value = topic.tags.get(tags)
        if value is None:
            self._count_cached()
            text = tags.decode(errors="replace")
            value = topic.tags[tags] = key_hash(topic.name, text, KeyKind.TAG)
        return value

    def head_start(self, topic: TopicHashes, head: bytes) -> int:
        """Return the hash of `topic#` and a key's ASCII head, times 31 ** 8."""
        value = topic.heads.get(head)
        if value is None:
            value = topic.base
            for at in range(0, len(head), _PIECE_BYTES):
                some = head[at : at + _PIECE_BYTES]
                value = value * _POWERS[len(some)]
                value = (value + sum(map(mul, some, _POWERS[len(some) - 1 :: -1]))) & _MASK
            value = value * _TAIL_POWER & _MASK
            if b" " not in head:
                self._count_cached()
                topic.heads[head] = value
        return value

    def _add_key(
        self, topic: TopicHashes, key: bytes, starts: list[int], tails: list[bytes]
    ) -> None:
        if not key.isascii():
            starts.append(key_hash(topic.name, key.decode(errors="replace"), KeyKind.KEY))
            tails.append(NO_TAIL)
        elif len(key) < LANE_BYTES:
            starts.append(short_start(topic, len(key)))
            tails.append(key.rjust(LANE_BYTES, b"\0"))
        else:
            starts.append(self.head_start(topic, key[:-LANE_BYTES]))
            tails.append(key[-LANE_BYTES:])

    def _count_cached(self) -> None:
        self._cached += 1
        if self._cached > _CACHED_MAX:
            self._clear_cache()

    def _clear_cache(self) -> None:
        self._topics.clear()
        self._cached = 0
        self.cache_resets += 1


def short_start(topic: TopicHashes, size: int) -> int:
    """Return the start of the hash of a key of `size` bytes, fewer than a lane has."""
    return topic.base * _POWERS[size] & _MASK
