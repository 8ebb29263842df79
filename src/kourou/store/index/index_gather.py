r"""Gathers index entries of many log records in columns, at a small cost per record.

Most records of a log resemble earlier ones: same topic, property names and tags at the same bytes.
Behind the body such a record consists of

    before | id | between | key | after | digits of the seal | \x02

(id and key in either order; key and seal are optional), where only id, key and digits differ
between records. A `_Form` caches what such records have in common: where to cut, and what the
constant bytes mean. A record of a known form costs two unpack calls and a few comparisons. Any
other record is parsed property by property, as in `index_keys.py`. Both ways give the same
entries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kourou.model.properties import CRC32, KEYS, TAGS, UNIQ_KEY
from kourou.model.sysflag import TRANSACTION_ROLLBACK
from kourou.protocol.record.layout import (
    HEAD_BYTES,
    HOST_FLAGS,
    MAGIC_V1,
    seal_digits_span,
)
from kourou.protocol.record.scan import KEY_HEAD, RECORD_TAIL_BYTES_MIN, RecordTail, cut_tail
from kourou.store.index.index_columns import NO_COLUMNS, KeyColumns
from kourou.store.index.index_feed import SLICE_MAX
from kourou.store.index.index_keys import KeyHashes, TopicHashes, is_indexed, short_start
from kourou.store.index.index_lanes import LANE_BYTES, NO_TAIL, lane_hashes
from kourou.store.index.index_log import LogCursor

ENTRIES_MAX: Final = 2000
"""Entries in a slice after which no further record is begun."""

_FORMS_MAX: Final = 1024
_FORM_BYTES_MAX: Final = 1024
"""Limits of the cached forms and of each one's bytes after the body: 1 MB. The cache is cleared
when full."""
_NEW_FORMS_MAX: Final = 8
"""New forms per slice."""
_PLAIN_MIN: Final = 4
_PLAIN_MAX: Final = 64
"""Slices gathered without forms after a slice of mostly unknown forms: at first the minimum, then
doubled for each further such slice up to the maximum."""
_JUDGED_MIN: Final = 64
"""Records in a slice below which its share of unknown forms is not judged."""
_TAKEN_MAX: Final = 64
"""Records parsed property by property in one call."""
_ODD_FLAGS: Final = HOST_FLAGS | TRANSACTION_ROLLBACK
_NAMES: Final = tuple(name.encode() for name in (UNIQ_KEY, KEYS, TAGS, CRC32))
_ID, _KEY, _TAGS, _SEAL = _NAMES


_Entry = tuple[int, bytes, int, int]
"""Start and tail of a key's hash (see `lane_hashes`), its record's position and store time."""


class _Form(NamedTuple):
    """Common properties of the records of one form, all of one topic.

    Attributes:
        id_starts: the start of an id's hash, by the id without its tail.
        key_starts: the start of a key's hash, by the key without its tail.
        tags_hash: the hash of the tags; -1 for none.
        key_first: whether the key precedes the id.
    """

    id_starts: dict[bytes, int]
    key_starts: dict[bytes, int]
    tags_hash: int
    key_first: bool


class _Cut(NamedTuple):
    """A way to cut the bytes after a body, and the forms that share it.

    Attributes:
        layout: the format of `unpack`.
        unpack: cuts the bytes into eight parts.
        forms: by the three constant parts.
    """

    layout: str
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    forms: dict[tuple[bytes, bytes, bytes], _Form]


_NO_FORM: Final = _Form({}, {}, -1, key_first=False)
_NO_CUT: Final = _Cut("", struct.Struct("0s" * 8).unpack_from, {})


class KeyGatherer:
    """Gathers the entries of the records after a cursor."""

    def __init__(self) -> None:
        self._hashes = KeyHashes()
        self._cuts: dict[int, _Cut] = {}  # by the number of bytes after the body
        self._forms = 0
        self._cache_resets = 0
        self._plain_left = self._plain_last = 0
        self._begin(0)

    def _begin(self, records_max: int) -> None:
        self._entries: list[_Entry] = []
        self._seals: list[bytes] = []
        self._left = records_max
        self._others = 0  # records of unknown forms
        self._new_forms_left = _NEW_FORMS_MAX
        if self._forms >= _FORMS_MAX or self._cache_resets != self._hashes.cache_resets:
            self._cuts.clear()
            self._forms, self._cache_resets = 0, self._hashes.cache_resets

    def gather(self, cursor: LogCursor, until: int, records_max: int = SLICE_MAX) -> KeyColumns:
        """Return the entries of the next records in memory that end at or below `until`.

        Moves the cursor after the last of these records.
        """
        begin = cursor.position
        self._begin(records_max)
        if self._plain_left:
            self._plain_left -= 1
            self._take_all(cursor, until)
        else:
            cursor.walk(until, self._walk)
            while self._has_room and self._take(cursor, until, 1):
                cursor.walk(until, self._walk)
            self._judge(records_max - self._left)
        if self._is_doubtful():
            # By its form, a property may have been cut at the wrong byte, or be several keys.
            cursor.seek(begin)
            self._begin(records_max)
            self._take_all(cursor, until)
        if not self._entries:
            return NO_COLUMNS
        starts, tails, offsets, times = zip(*self._entries, strict=True)
        hashes = lane_hashes(starts, b"".join(tails))
        return KeyColumns(hashes, offsets, times, min(times), max(times))

    def _is_doubtful(self) -> bool:
        """Tell whether an id, a key or a seal contains a byte that it cannot contain."""
        tails = b"".join([tail for _, tail, _, _ in self._entries])
        is_odd = b"\x02" in tails or b" " in tails or not tails.isascii()
        return is_odd or b"\x02" in b"".join(self._seals)

    @property
    def _has_room(self) -> bool:
        return self._left > 0 and len(self._entries) < ENTRIES_MAX

    def _judge(self, records: int) -> None:
        """Stop using forms for some slices if most records had an unknown one."""
        if 2 * self._others <= records:
            self._plain_last = 0
        elif records >= _JUDGED_MIN:
            self._plain_last = min(max(2 * self._plain_last, _PLAIN_MIN), _PLAIN_MAX)
            self._plain_left = self._plain_last

    def _take_all(self, cursor: LogCursor, until: int) -> None:
        """Parse records of any kind until memory has no more of them or the slice is full."""
        while self._has_room and self._take(cursor, until, min(self._left, _TAKEN_MAX)):
            pass

    def _take(self, cursor: LogCursor, until: int, records_max: int) -> bool:
        """Parse at most `records_max` records of any kind; return False if none is in memory."""
        records = cursor.next_records(until, records_max)
        for record in records:
            if len(self._entries) >= ENTRIES_MAX:
                cursor.seek(record.start)
                break
            self._left -= 1
            if is_indexed(record.sys_flag):
                topic = self._hashes.topic(record.topic)
                self._add(topic, record.properties, record.start, record.store_at_ms)
        return bool(records)

    def _add(self, topic: TopicHashes, properties: bytes, offset: int, store_at_ms: int) -> None:
        starts, tails = list[int](), list[bytes]()
        self._hashes.add_record(topic, properties, starts, tails)
        for start, tail in zip(starts, tails, strict=True):
            self._entries.append((start, tail, offset, store_at_ms))

    def _walk(self, chunk: bytes, at: int, chunk_start: int, end: int) -> int:
        """Gather complete records with IPv4 hosts from the chunk; return where the next one begins.

        One loop without calls per record, because it runs for each message.
        """
        cuts, seals, add = self._cuts, self._seals, self._entries.append
        left, last = self._left, end - HEAD_BYTES
        cut_size, before, between, after = -1, None, b"", b""
        (_, unpack, forms), form = _NO_CUT, _NO_FORM
        id_starts, key_starts, tags_hash, key_first = form
        while left > 0 and at <= last:
            size, magic, offset, sys_flag, store_at_ms, body_size = KEY_HEAD(chunk, at)
            next_at = at + size
            topic_at = at + HEAD_BYTES + body_size
            if (
                magic != MAGIC_V1
                or offset != chunk_start + at
                or (sys_flag & _ODD_FLAGS and _is_odd(sys_flag))
                or not at < topic_at <= next_at - RECORD_TAIL_BYTES_MIN
                or next_at > end
            ):
                break
            if next_at - topic_at != cut_size:
                cut_size, before = next_at - topic_at, None
                _, unpack, forms = cuts.get(cut_size, _NO_CUT)
            start, id_head, id_tail, middle, key_head, key_tail, rest, seal = unpack(
                chunk, topic_at
            )
            if start != before or middle != between or rest != after:
                before, between, after = start, middle, rest
                form = forms.get((start, middle, rest), _NO_FORM)
                id_starts, key_starts, tags_hash, key_first = form
            if key_first:
                id_head, id_tail, key_head, key_tail = key_head, key_tail, id_head, id_tail
            id_start = id_starts.get(id_head)
            key_start = key_starts.get(key_head) if key_tail else 0
            if id_start is None or key_start is None:
                if not self._add_other(
                    chunk[topic_at:next_at], offset, store_at_ms, is_new=form is _NO_FORM
                ):
                    break
                cut_size = -1  # its form may have been added
            else:
                seals.append(seal)
                add((id_start, id_tail, offset, store_at_ms))
                if key_tail:
                    key_tail = key_tail.rjust(LANE_BYTES, b"\0")
                    add((key_start, key_tail, offset, store_at_ms))
                if tags_hash >= 0:
                    add((tags_hash, NO_TAIL, offset, store_at_ms))
            at = next_at
            left -= 1
        self._left = left
        return at

    def _add_other(self, tail: bytes, offset: int, store_at_ms: int, *, is_new: bool) -> bool:
        """Gather a record of an unknown form; return False if its bytes are inconsistent.

        Also returns False if the slice has no room for more entries.

        Args:
            tail: the bytes after the record's body.
            offset: the record's physical offset.
            store_at_ms: the record's store time.
            is_new: whether not even the constant parts match a form.
        """
        self._others += 1
        cut = cut_tail(tail)
        if cut is None or len(self._entries) >= ENTRIES_MAX:
            return False
        topic = self._hashes.topic(cut.topic)
        self._add(topic, cut.properties, offset, store_at_ms)
        if is_new and self._new_forms_left and len(tail) <= _FORM_BYTES_MAX:
            self._new_forms_left -= 1
            self._add_form(tail, topic, cut)
        return True

    def _add_form(self, tail: bytes, topic: TopicHashes, parsed: RecordTail) -> None:
        """Add the record's form to the cache, if only an id and a key may differ in it."""
        values = _find_values(parsed.properties, parsed.properties_at)
        if values is None:
            return
        end, seal_size = parsed.properties_at + len(parsed.properties), 0
        if _SEAL in values:
            end, seal_size = values[_SEAL]
        id_at, id_size = values[_ID]
        key_at, key_size = values.get(_KEY, (end, 0))
        key_first = key_at < id_at
        sizes, at = list[int](), 0
        for value_at, size in sorted(((id_at, id_size), (key_at, key_size))):
            tail_size = min(size, LANE_BYTES)
            sizes += (value_at - at, size - tail_size, tail_size)
            at = value_at + size
        form = "".join(f"{size}s" for size in (*sizes, end - at, seal_size))
        cut = self._cuts.get(len(tail))
        if cut is None or cut.layout != form:
            cut = self._cuts[len(tail)] = _Cut(form, struct.Struct(form).unpack_from, {})
        parts = cut.unpack(tail, 0)
        is_short = key_size < LANE_BYTES
        key_starts = {b"": short_start(topic, key_size)} if is_short else topic.heads
        tags_at, tags_size = values.get(_TAGS, (0, 0))
        tags = tail[tags_at : tags_at + tags_size]
        tags_hash = self._hashes.tags_hash(topic, tags) if tags else -1
        cut.forms[parts[0], parts[3], parts[6]] = _Form(
            topic.heads, key_starts, tags_hash, key_first
        )
        self._forms += 1


def _is_odd(sys_flag: int) -> bool:
    return bool(sys_flag & HOST_FLAGS) or not is_indexed(sys_flag)


def _find_values(properties: bytes, start: int) -> dict[bytes, tuple[int, int]] | None:
    """Return position and size of the values of id, key, tags and seal; `start` is added to each.

    None if the id is missing or shorter than a lane, there are several keys, a property occurs
    twice or is empty, or the seal is not the last property.
    """
    values: dict[bytes, tuple[int, int]] = {}
    at = start
    for text in properties.split(b"\x02"):
        name, _, value = text.partition(b"\x01")
        if name in _NAMES:
            if name in values or not value:
                return None
            values[name] = (at + len(text) - len(value), len(value))
        at += len(text) + 1
    _, id_size = values.get(_ID, (0, 0))
    key_at, key_size = values.get(_KEY, (0, 0))
    keys = properties[key_at - start : key_at - start + key_size] if key_size else b""
    if id_size < LANE_BYTES or b" " in keys:
        return None
    digits_at, digits = seal_digits_span(properties)
    if _SEAL in values and values[_SEAL] != (start + digits_at, digits):
        return None
    return values
