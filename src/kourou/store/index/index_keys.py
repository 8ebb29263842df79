"""Indexed keys of records, and the index entries of their hashes.

A record has an entry for each of these, in this order:

    its unique id         `topic#id`       property UNIQ_KEY
    each of its keys      `topic#key`      property KEYS, separated by blanks
    its tags as a whole   `topic#T#tags`   property TAGS

The record of a rolled back transaction has none.

The texts of a slice of records are joined and hashed together in the lanes of long integers
(`index_lanes.py`). The hash of `a + b` is computed from the hash of `a`, so the hashes of topics,
tags and the common beginnings of ids are cached. Slices whose records all have one id of the usual
length and at most one short key are hashed column by column; others text by text, at about twice
the cost. Both give the same entries.

Source: IndexService.buildIndex, IndexFile.indexKeyHashMethod, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence
from enum import Enum
from itertools import compress
from operator import mul
from typing import Final, NamedTuple, TypeVar

from kourou.model.properties import KEYS, TAGS, UNIQ_KEY
from kourou.model.sysflag import TRANSACTION_ROLLBACK
from kourou.protocol.hashing import java_string_hash
from kourou.protocol.record.keys import property_value
from kourou.protocol.record.scan import LogRecord
from kourou.store.index.index_feed import ID_HEAD_CHARS, UNIQUE_ID_CHARS, KeyTexts
from kourou.store.index.index_lanes import LANE_BYTES, LANES_MAX, lane_numbers, text_hashes

ENTRIES_MAX: Final = 2000
"""Entries in a slice after which no further record is begun."""

_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_TEXT_MAX: Final = 128
"""Longest text hashed in lanes, because each text takes as many lanes as the longest one."""
_PIECE_UNITS: Final = 256
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_PIECE_UNITS + 1))
_CACHED_MAX: Final = 4096
"""Limit of each cache: 1 MB. A cache is cleared when full."""
_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

_ID_NAME, _KEYS_NAME, _TAGS_NAME = (name.encode() for name in (UNIQ_KEY, KEYS, TAGS))
_UNIQ_KEY, _KEYS, _TAGS = (name + b"\x01" for name in (_ID_NAME, _KEYS_NAME, _TAGS_NAME))
_FIND_ALL: Final = re.compile(
    rb"\x02(%b|%b|%b)\x01([^\x02]+)" % (_ID_NAME, _KEYS_NAME, _TAGS_NAME)
).findall
"""Returns names and values of the three properties. Each must have a byte 2 before it, to which the
search jumps. Empty values are omitted; of several with one name, the last one counts."""
_RECORD_START: Final = b"\x02\x01\x02"
"""Precedes the properties of each of many joined records."""
_Key = TypeVar("_Key")
_Cached = TypeVar("_Cached")


class KeyKind(Enum):
    """The kind of a key in a query."""

    KEY = "K"
    UNIQUE_ID = "U"
    TAG = "T"


class KeyEntries(NamedTuple):
    """Entries to add: each key's hash, its record's log position, and the record's store time.

    Attributes:
        time_min, time_max: bounds of `times`, in epoch milliseconds.
    """

    hashes: Sequence[int]
    offsets: Sequence[int]
    times: Sequence[int]
    time_min: int
    time_max: int

    def part(self, start: int, end: int) -> KeyEntries:
        """Return the entries from `start` to below `end`."""
        return self._replace(
            hashes=self.hashes[start:end],
            offsets=self.offsets[start:end],
            times=self.times[start:end],
        )


_NO_ENTRIES: Final = KeyEntries((), (), (), 0, 0)


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
        return property_value(properties, _TAGS) == key
    if property_value(properties, _UNIQ_KEY) == key:
        return True
    return kind is KeyKind.KEY and key in property_value(properties, _KEYS).split(b" ")


def _positive(value: int) -> int:
    """Return the absolute value of a signed 32-bit number; 0 for -2 ** 31, which has none."""
    if value < _SIGN:
        return value
    return 0 if value == _SIGN else _MASK + 1 - value


class KeyHashes:
    """Hashes the keys of records; caches the hashes of topics, tags and beginnings of ids."""

    def __init__(self) -> None:
        # By topic and tags: the hash of `topic#`, and that of `topic#T#tags`, or -1 without tags.
        self._by_tags: dict[tuple[str, str], tuple[int, int]] = {}
        # By topic: the hashes of `topic#` and `topic#T#`.
        self._by_topic: dict[bytes, tuple[int, int]] = {}
        # By the hash of `topic#` and an id's head: the hash of both, times 31 ** 8.
        self._by_head: dict[tuple[int, bytes], int] = {}

    @property
    def cached_topics(self) -> int:
        """Size of the larger of the caches by topic, and by topic and tags."""
        return max(len(self._by_tags), len(self._by_topic))

    def of_record(self, record: LogRecord) -> list[int]:
        """Return the hashes of all keys of a record, in the order of their entries."""
        return list(self._one_by_one([record])[0].hashes)

    def of_records(self, records: Sequence[LogRecord]) -> tuple[KeyEntries, int]:
        """Return the entries of the first records, and the number of these records."""
        if not records:
            return _NO_ENTRIES, 0
        texts = _texts_of(records)
        entries = None if texts is None else self.of_texts(texts)
        return self._one_by_one(records) if entries is None else (entries, len(records))

    def of_texts(self, records: KeyTexts) -> KeyEntries | None:
        """Return the entries of the records; None if these cannot be hashed by columns."""
        keys, tags = records.keys, records.tags
        bases, tag_hashes = self._topic_columns(records.topics, tags)
        ids = self._id_column(bases, records)
        if ids is None:
            return None
        columns = [ids]
        is_whole = True  # each record has an entry in each column
        if any(keys):
            key_hashes = _key_column(bases, keys)
            if key_hashes is None:
                return None
            columns.append(key_hashes)
            is_whole = all(keys)
        if any(tags):
            columns.append(tag_hashes)
            is_whole = is_whole and all(tags)
        width = len(columns)
        hashes, offsets = _interleave(columns), _interleave([records.starts] * width)
        time_min, time_max = min(records.times), max(records.times)
        times = [time_min] * len(hashes)
        if time_min != time_max:
            for at in range(width):
                times[at::width] = records.times
        if is_whole:
            return KeyEntries(hashes, offsets, times, time_min, time_max)
        are_there = [value >= 0 for value in hashes]
        some = [list(compress(column, are_there)) for column in (hashes, offsets, times)]
        return KeyEntries(some[0], some[1], some[2], time_min, time_max)

    def _one_by_one(self, records: Sequence[LogRecord]) -> tuple[KeyEntries, int]:
        """Return the entries of the first records, and the number of these records."""
        bases, texts = list[int](), list[bytes]()
        offsets, times = array("q"), list[int]()
        number = 0
        for record in records:
            if len(texts) >= ENTRIES_MAX:
                break
            number += 1
            if not is_indexed(record.sys_flag):
                continue
            base, tags_base = self._bases_of(record.topic)
            # The same values as `_value` returns for each of the three, in one call.
            values = dict(_FIND_ALL(b"\x02" + record.properties))
            first = len(texts)
            if unique_id := values.get(_ID_NAME):
                texts.append(unique_id)
            if keys := values.get(_KEYS_NAME):
                texts += filter(None, keys.split(b" "))
            bases += [base] * (len(texts) - first)
            if tags := values.get(_TAGS_NAME):
                texts.append(tags)
                bases.append(tags_base)
            added = len(texts) - first
            offsets.extend([record.start] * added)
            times += [record.store_at_ms] * added
        span = (min(times), max(times)) if times else (0, 0)
        return KeyEntries(_hashes_of(bases, texts), offsets, times, *span), number

    def _id_column(self, bases: Sequence[int], records: KeyTexts) -> array[int] | None:
        """Return the hash of each id; None if one is missing, too long or not ASCII."""
        if records.other_ids:
            is_missing = "" in records.other_ids
            return None if is_missing else _key_column(bases, records.other_ids)
        number, parts = len(records), records.ids
        if all(head for _, head, _ in parts):
            texts = b"".join([tails for _, _, tails in parts])
            starts, at = [], 0
            for count, head, _ in parts:
                start = self._head_lane(bases[at if len(bases) > 1 else 0], head)
                starts.append(start * count)
                at += count
            all_starts, size = b"".join(starts), UNIQUE_ID_CHARS - ID_HEAD_CHARS
        else:
            texts = b"".join([_whole_ids(head, tails) for _, head, tails in parts])
            all_starts, size = _starts(bases, (UNIQUE_ID_CHARS,), number), UNIQUE_ID_CHARS
        if len(texts) != size * number or not texts.isascii():
            return None
        return text_hashes(all_starts, texts)

    def _head_lane(self, base: int, head: bytes) -> bytes:
        """Return the start lane (see `text_hashes`) for the rest of an id that begins with `head`.

        Args:
            base: the hash of `topic#`.
            head: the first `ID_HEAD_CHARS` of the id.
        """
        found = self._by_head.get((base, head))
        if found is None:
            found = _extended(base, head.decode("latin-1")) * _POWERS[LANE_BYTES] & _MASK
            _store(self._by_head, (base, head), found)
        return lane_numbers((found,))

    def _topic_columns(
        self, topics: Sequence[str], tags: Sequence[str]
    ) -> tuple[Sequence[int], array[int]]:
        """Return the hashes of each record's `topic#`, or one for all, and those of its tags."""
        number = len(topics)
        if topics.count(topics[0]) == number == tags.count(tags[0]):
            base, tags_hash = self._topic_hashes(topics[0], tags[0])
            return (base,), array("i", (tags_hash,)) * number
        known = [self._topic_hashes(*pair) for pair in zip(topics, tags, strict=True)]
        bases, hashes = zip(*known, strict=True)
        return bases, array("i", hashes)

    def _topic_hashes(self, topic: str, tags: str) -> tuple[int, int]:
        found = self._by_tags.get((topic, tags))
        if found is None:
            base = java_string_hash(f"{topic}#") & _MASK
            found = base, key_hash(topic, tags, KeyKind.TAG) if tags else -1
            _store(self._by_tags, (topic, tags), found)
        return found

    def _bases_of(self, topic: bytes) -> tuple[int, int]:
        found = self._by_topic.get(topic)
        if found is None:
            base = _extended(0, topic.decode(errors="replace") + "#")
            found = base, _extended(base, "T#")
            _store(self._by_topic, topic, found)
        return found


def _store(cache: dict[_Key, _Cached], key: _Key, value: _Cached) -> None:
    if len(cache) >= _CACHED_MAX:
        cache.clear()
    cache[key] = value


def _texts_of(records: Sequence[LogRecord]) -> KeyTexts | None:
    """Return the texts of the records' keys; None if the records have different kinds of keys.

    Also None if they have no ids, or texts are not ASCII.
    """
    starts, sizes, flags, times, topics, properties = zip(*records, strict=True)
    number = len(starts)
    if not all(map(is_indexed, set(flags))):
        return None
    # A character for each byte: texts for which that is wrong are refused below.
    text = _RECORD_START.join((b"", *properties)).decode("latin-1")
    found = text.split("\x02")
    width, rest = divmod(len(found) - 1, number)
    if rest or not text.count("\x02\x01") == found[1::width].count("\x01") == number:
        return None  # the records have different numbers of properties, or one without a name
    columns: list[list[str]] = []
    for name in (f"{UNIQ_KEY}\x01", f"{KEYS}\x01", f"{TAGS}\x01"):
        column = _column(found, width, name)
        if column is None or text.count(f"\x02{name}") != len(column):
            return None
        columns.append(column)
    ids, keys, tags = columns
    if not ids or not all(map(str.isascii, set(tags))):
        return None
    texts = KeyTexts(starts[-1] + sizes[-1])
    texts.starts = array("q", starts)
    texts.times = [*times]
    texts.topics = _decoded(topics)
    texts.tags = tags or [""] * number
    if set(map(len, ids)) == {UNIQUE_ID_CHARS}:
        texts.ids = [(number, b"", "".join(ids).encode("latin-1"))]
    elif text.isascii():
        texts.other_ids = ids
    else:
        return None
    texts.keys = keys
    return texts


def _column(found: Sequence[str], width: int, name: str) -> list[str] | None:
    """Return the values of a property in rows of `width` texts; empty if the first row lacks it.

    None if another row has another property there.
    """
    at = next((at for at in range(1, width + 1) if found[at].startswith(name)), 0)
    if not at:
        return []
    column, size = found[at::width], len(name)
    values = [one[size:] for one in column]
    return values if name + f"\x02{name}".join(values) == "\x02".join(column) else None


def _decoded(topics: Sequence[bytes]) -> list[str]:
    if topics.count(topics[0]) == len(topics):
        return [topics[0].decode(errors="replace")] * len(topics)
    return [topic.decode(errors="replace") for topic in topics]


def _whole_ids(head: bytes, tails: bytes) -> bytes:
    """Return the joined ids that share `head`; `tails` itself if there is no common head."""
    if not head:
        return tails
    return b"".join([head + tails[at : at + LANE_BYTES] for at in range(0, len(tails), LANE_BYTES)])


def _starts(bases: Sequence[int], sizes: Sequence[int], number: int) -> bytes:
    """Return the start lanes of `number` texts; a single base or size applies to all of them."""
    if len(bases) == len(sizes) == 1:
        return lane_numbers((bases[0] * _POWERS[sizes[0]] & _MASK,)) * number
    bases, sizes = (some if len(some) > 1 else [*some] * number for some in (bases, sizes))
    return lane_numbers([base * _POWERS[n] & _MASK for base, n in zip(bases, sizes, strict=True)])


def _key_column(bases: Sequence[int], keys: Sequence[str]) -> array[int] | None:
    """Return the hash of each key, -1 for none.

    None if a record has several keys, or a key is too long or not ASCII.
    """
    sizes: Sequence[int] = list(map(len, keys))
    shortest, longest = min(sizes), max(sizes)
    texts = "".join(keys)
    if longest > _TEXT_MAX or " " in texts or not texts.isascii():
        return None
    width = -(-longest // LANE_BYTES) * LANE_BYTES
    if shortest < width:
        texts = "".join([key.rjust(width, "\0") for key in keys])
    starts = _starts(bases, (longest,) if shortest == longest else sizes, len(keys))
    found = text_hashes(starts, texts.encode())
    if not shortest:
        found = array("i", [key if size else -1 for key, size in zip(found, sizes, strict=True)])
    return found


def _hashes_of(bases: Sequence[int], texts: Sequence[bytes]) -> array[int]:
    """Return the hash of each text, where the hash of all before it is a base."""
    found = array("i")
    for first in range(0, len(texts), LANES_MAX):
        some, some_bases = list(texts[first : first + LANES_MAX]), bases[first : first + LANES_MAX]
        single: dict[int, int] = {}
        for at, text in enumerate(some):
            if len(text) > _TEXT_MAX or not text.isascii():
                single[at] = _extended(some_bases[at], text.decode(errors="replace"))
                some[at] = b""
        sizes = list(map(len, some))
        width = max(-(-max(sizes) // LANE_BYTES), 1) * LANE_BYTES
        padded = b"".join([text.rjust(width, b"\0") for text in some])
        column = text_hashes(_starts(some_bases, sizes, len(some)), padded)
        for at, value in single.items():
            column[at] = _positive(value)
        found += column
    return found


def _extended(base: int, text: str) -> int:
    """Return the hash of a text, where `base` is the hash of all before it: 32 bits, no sign."""
    units = array("H", text.encode(_UTF16, "surrogatepass"))
    for at in range(0, len(units), _PIECE_UNITS):
        some = units[at : at + _PIECE_UNITS]
        base = base * _POWERS[len(some)] + sum(map(mul, some, _POWERS[len(some) - 1 :: -1]))
        base &= _MASK
    return base


def _interleave(columns: Sequence[array[int]]) -> array[int]:
    """Return the first of each column, then the second of each, and so on."""
    if len(columns) == 1:
        return columns[0]
    found = columns[0] * len(columns)
    for at, column in enumerate(columns):
        found[at :: len(columns)] = column
    return found
