r"""Gathers what the index gets of many records, in columns, at little cost a record.

Most records of a log look like others before them: the same topic, property names and tags in the
same places. What follows the body of such a record is

    before | id | between | key | after | digits of the seal | \x02

(the id and the key in any order, the key and the seal not always there), where only id, key and
digits differ from record to record. Of what such a record looks like, its `_Form` is remembered:
where to cut, and what the rest says. So a record takes two calls that unpack, and some comparisons.
What looks otherwise is read property by property, as `index_keys.py` does; and nothing is
taken here that would be read differently there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kourou.model.properties import CRC32, KEYS, TAGS, UNIQ_KEY
from kourou.model.sysflag import TRANSACTION_ROLLBACK
from kourou.protocol.message_layout import MAGIC_V1
from kourou.store.index.index_columns import NO_COLUMNS, KeyColumns
from kourou.store.index.index_feed import SLICE_MAX
from kourou.store.index.index_keys import KeyHashes, TopicHashes, is_indexed, short_start
from kourou.store.index.index_lanes import LANE_BYTES, NO_TAIL, lane_hashes
from kourou.store.index.index_log import HEAD, HEAD_BYTES, TAIL_BYTES_MIN, V6_FLAGS, LogCursor

ENTRIES_MAX: Final = 2000
"""Of records that have many keys, no further one is begun behind so many."""

_FORMS_MAX: Final = 1024
_FORM_BYTES_MAX: Final = 1024
"""How many forms are remembered, and of how many bytes behind the body: 1 MB, then all of them are
forgotten."""
_LEARNT_MAX: Final = 8
"""Forms that are learnt at once."""
_PLAIN_MIN: Final = 4
_PLAIN_MAX: Final = 64
"""Where records are all different, forms are not looked for so many times; then once more, and
twice as many times not if that was in vain."""
_JUDGED_MIN: Final = 64
"""Fewer records tell nothing of others."""
_TAKEN_MAX: Final = 64
"""Records that are read property by property in one go."""
_SEAL_DIGITS: Final = 10
_ODD_FLAGS: Final = V6_FLAGS | TRANSACTION_ROLLBACK
_NAMES: Final = tuple(name.encode() for name in (UNIQ_KEY, KEYS, TAGS, CRC32))
_ID, _KEY, _TAGS, _SEAL = _NAMES
_SIZE16: Final = struct.Struct(">h").unpack_from


_Entry = tuple[int, bytes, int, int]
"""Both parts of a key's hash, where its record is, and its store time."""


class _Form(NamedTuple):
    """What records of one form have in common, all of one topic.

    Attributes:
        id_starts: the first part of an id's hash, by all of it but its tail.
        key_starts: the same of a key.
        tags_hash: of the tags; -1 for none.
        key_first: whether the key is before the id.
    """

    id_starts: dict[bytes, int]
    key_starts: dict[bytes, int]
    tags_hash: int
    key_first: bool


class _Cut(NamedTuple):
    """Where to cut what follows a body, and the forms by what does not differ then."""

    places: str
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    forms: dict[tuple[bytes, bytes, bytes], _Form]


_NO_FORM: Final = _Form({}, {}, -1, key_first=False)
_NO_CUT: Final = _Cut("", struct.Struct("0s" * 8).unpack_from, {})


class KeyGatherer:
    """Gathers from where a cursor stands; its columns are for one use."""

    def __init__(self) -> None:
        self._hashes = KeyHashes()
        self._cuts: dict[int, _Cut] = {}  # by the number of bytes behind the body
        self._forms = 0
        self._forgotten = 0
        self._plain_left = self._plain_last = 0
        self._begin(0)

    def _begin(self, records_max: int) -> None:
        self._entries: list[_Entry] = []
        self._seals: list[bytes] = []
        self._left = records_max
        self._others = 0  # records of forms that were not known
        self._to_learn = _LEARNT_MAX
        if self._forms >= _FORMS_MAX or self._forgotten != self._hashes.forgotten:
            self._cuts.clear()
            self._forms, self._forgotten = 0, self._hashes.forgotten

    def gather(self, cursor: LogCursor, until: int, records_max: int = SLICE_MAX) -> KeyColumns:
        """Return the entries of the next records in memory that end at or below `until`.

        The cursor is behind the last record then.
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
            # An id or a key that ends earlier than it seemed, or is several.
            cursor.back_to(begin)
            self._begin(records_max)
            self._take_all(cursor, until)
        if not self._entries:
            return NO_COLUMNS
        starts, tails, offsets, times = zip(*self._entries, strict=True)
        hashes = lane_hashes(starts, b"".join(tails))
        return KeyColumns(hashes, offsets, times, min(times), max(times))

    def _is_doubtful(self) -> bool:
        """Tell whether an id, a key or a seal has in it what it could not have as such."""
        tails = b"".join([tail for _, tail, _, _ in self._entries])
        is_odd = b"\x02" in tails or b" " in tails or not tails.isascii()
        return is_odd or b"\x02" in b"".join(self._seals)

    @property
    def _has_room(self) -> bool:
        return self._left > 0 and len(self._entries) < ENTRIES_MAX

    def _judge(self, records: int) -> None:
        """Go without forms for some time if most records had none that was known."""
        if 2 * self._others <= records:
            self._plain_last = 0
        elif records >= _JUDGED_MIN:
            self._plain_last = min(max(2 * self._plain_last, _PLAIN_MIN), _PLAIN_MAX)
            self._plain_left = self._plain_last

    def _take_all(self, cursor: LogCursor, until: int) -> None:
        """Gather records of any kind, as many as there are and there is room for."""
        while self._has_room and self._take(cursor, until, min(self._left, _TAKEN_MAX)):
            pass

    def _take(self, cursor: LogCursor, until: int, records_max: int) -> bool:
        """Gather so many records of any kind; False if none is in memory."""
        records = cursor.take(until, records_max)
        for record in records:
            if len(self._entries) >= ENTRIES_MAX:
                cursor.back_to(record.start)
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
        """Gather records with IPv4 hosts that lie in the chunk as a whole; return where to go on.

        Called once for many of them: what is done for each message stands here.
        """
        cuts, seals, add = self._cuts, self._seals, self._entries.append
        left, last = self._left, end - HEAD_BYTES
        cut_size, before, between, after = -1, None, b"", b""
        (_, unpack, forms), form = _NO_CUT, _NO_FORM
        id_starts, key_starts, tags_hash, key_first = form
        while left > 0 and at <= last:
            size, magic, offset, sys_flag, store_at_ms, body_size = HEAD(chunk, at)
            next_at = at + size
            topic_at = at + HEAD_BYTES + body_size
            if (
                magic != MAGIC_V1
                or offset != chunk_start + at
                or (sys_flag & _ODD_FLAGS and _is_odd(sys_flag))
                or not at < topic_at <= next_at - TAIL_BYTES_MIN
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
                cut_size = -1  # its form may be known now
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
        """Gather a record by what follows its body, of whatever form; False if that is no such."""
        self._others += 1
        topic_end = 1 + tail[0]
        properties_at = topic_end + 2
        if (
            topic_end == 1
            or properties_at > len(tail)
            or _SIZE16(tail, topic_end)[0] != len(tail) - properties_at
            or len(self._entries) >= ENTRIES_MAX
        ):
            return False
        topic = self._hashes.topic(tail[1:topic_end])
        self._add(topic, tail[properties_at:], offset, store_at_ms)
        if is_new and self._to_learn and len(tail) <= _FORM_BYTES_MAX:
            self._to_learn -= 1
            self._learn(tail, topic, properties_at)
        return True

    def _learn(self, tail: bytes, topic: TopicHashes, properties_at: int) -> None:
        """Remember the form of a record, if it is one where an id and a key alone may differ."""
        places = _places(tail, properties_at)
        if places is None:
            return
        end, seal_size = len(tail), 0
        if _SEAL in places:
            end, seal_size = places[_SEAL]
        id_at, id_size = places[_ID]
        key_at, key_size = places.get(_KEY, (end, 0))
        key_first = key_at < id_at
        sizes, at = list[int](), 0
        for place, size in sorted(((id_at, id_size), (key_at, key_size))):
            tail_size = min(size, LANE_BYTES)
            sizes += (place - at, size - tail_size, tail_size)
            at = place + size
        form = "".join(f"{size}s" for size in (*sizes, end - at, seal_size))
        cut = self._cuts.get(len(tail))
        if cut is None or cut.places != form:
            cut = self._cuts[len(tail)] = _Cut(form, struct.Struct(form).unpack_from, {})
        parts = cut.unpack(tail, 0)
        is_short = key_size < LANE_BYTES
        key_starts = {b"": short_start(topic, key_size)} if is_short else topic.heads
        tags_at, tags_size = places.get(_TAGS, (0, 0))
        tags = tail[tags_at : tags_at + tags_size]
        tags_hash = self._hashes.tags_hash(topic, tags) if tags else -1
        cut.forms[parts[0], parts[3], parts[6]] = _Form(
            topic.heads, key_starts, tags_hash, key_first
        )
        self._forms += 1


def _is_odd(sys_flag: int) -> bool:
    return bool(sys_flag & V6_FLAGS) or not is_indexed(sys_flag)


def _places(tail: bytes, at: int) -> dict[bytes, tuple[int, int]] | None:
    """Return where the values of id, key, tags and seal are, and their sizes.

    None if there is no long id, several keys, a property twice, or a seal that is not the last.
    """
    places: dict[bytes, tuple[int, int]] = {}
    for text in tail[at:].split(b"\x02"):
        name, _, value = text.partition(b"\x01")
        if name in _NAMES:
            if name in places or not value:
                return None
            places[name] = (at + len(text) - len(value), len(value))
        at += len(text) + 1
    _, id_size = places.get(_ID, (0, 0))
    key_at, key_size = places.get(_KEY, (0, 0))
    has_seal_elsewhere = _SEAL in places and places[_SEAL] != (
        len(tail) - 1 - _SEAL_DIGITS,
        _SEAL_DIGITS,
    )
    if id_size < LANE_BYTES or b" " in tail[key_at : key_at + key_size] or has_seal_elsewhere:
        return None
    return places
