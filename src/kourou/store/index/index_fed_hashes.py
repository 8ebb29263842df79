"""Hashes the keys of records from the index feed, one column for a whole slice at a time.

The texts of many records are joined and hashed in the lanes of long integers (`index_lanes`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Final

from kourou.protocol.hashing import java_string_hash
from kourou.store.index.index_columns import KeyColumns
from kourou.store.index.index_feed import ID_HEAD_CHARS, UNIQUE_ID_CHARS, FedColumns
from kourou.store.index.index_keys import KeyKind, key_hash
from kourou.store.index.index_lanes import LANE_BYTES, lane_numbers, text_hashes
from kourou.store.index.index_rows import KeyRows

_KEY_BYTES_MAX: Final = 64
"""Longest key hashed here, because each key takes as many lanes as the slice's longest one."""
_TOPICS_MAX: Final = 4096
"""Cached hashes of (topic, tags): 1 MB. The cache is cleared when full."""
_HEADS_MAX: Final = 4096
"""Cached hashes of the heads of ids: 1 MB. The cache is cleared when full."""
_MASK: Final = 0xFFFF_FFFF
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_KEY_BYTES_MAX + 1))


class FedHashes:
    """Computes index entries of fed records; caches the hashes of topics, tags and id heads."""

    def __init__(self) -> None:
        # By topic and tags: the hash of `topic#`, and that of `topic#T#tags`, or -1 without tags.
        self._topic_hashes: dict[tuple[str, str], tuple[int, int]] = {}
        # By the hash of `topic#` and an id's head: the hash of both, times 31 ** 8.
        self._heads: dict[tuple[int, bytes], int] = {}

    def columns(self, records: FedColumns) -> KeyColumns | KeyRows | None:
        """Return the entries of the records; None if these must be read from the log instead."""
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
        *others, last = columns
        if is_whole:
            return KeyRows(others, last, records.starts, records.times)
        number = len(records)
        last = last if len(last) == number else last * number
        some = KeyRows(others, last, records.starts, records.times).columns()
        are_there = [key >= 0 for key in some.hashes]
        return some._replace(
            hashes=list(compress(some.hashes, are_there)),
            offsets=list(compress(some.offsets, are_there)),
            times=list(compress(some.times, are_there)),
        )

    def _id_column(self, bases: Sequence[int], records: FedColumns) -> array[int] | None:
        """Return the hash of each id; None if one has another length or is not ASCII."""
        number, parts = len(records), records.ids
        if all(head for _, head, _ in parts):
            texts = b"".join([tails for _, _, tails in parts])
            starts, at = [], 0
            for count, head, _ in parts:
                start = self._start(bases[at if len(bases) > 1 else 0], head)
                starts.append(start * count)
                at += count
            all_starts, size = b"".join(starts), UNIQUE_ID_CHARS - ID_HEAD_CHARS
        else:
            texts = b"".join([_whole_ids(head, tails) for _, head, tails in parts])
            all_starts, size = _starts(bases, (UNIQUE_ID_CHARS,), number), UNIQUE_ID_CHARS
        if len(texts) != size * number or not texts.isascii():
            return None
        return text_hashes(all_starts, texts)

    def _start(self, base: int, head: bytes) -> bytes:
        """Return the start lane (see `text_hashes`) for the rest of an id that begins with `head`.

        Args:
            base: the hash of `topic#`.
            head: the first `ID_HEAD_CHARS` of the id.
        """
        found = self._heads.get((base, head))
        if found is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            found = base
            for char in head:
                found = found * 31 + char & _MASK
            found = self._heads[base, head] = found * _POWERS[LANE_BYTES] & _MASK
        return lane_numbers((found,))

    def _topic_columns(
        self, topics: Sequence[str], tags: Sequence[str]
    ) -> tuple[Sequence[int], array[int]]:
        """Return the hashes of each record's `topic#` and tags; a single value if all are alike."""
        number = len(topics)
        if topics.count(topics[0]) == number == tags.count(tags[0]):
            base, tags_hash = self._hashes_of(topics[0], tags[0])
            return (base,), array("i", (tags_hash,))
        known = [self._hashes_of(*pair) for pair in zip(topics, tags, strict=True)]
        bases, hashes = zip(*known, strict=True)
        return bases, array("i", hashes)

    def _hashes_of(self, topic: str, tags: str) -> tuple[int, int]:
        found = self._topic_hashes.get((topic, tags))
        if found is None:
            if len(self._topic_hashes) >= _TOPICS_MAX:
                self._topic_hashes.clear()
            base = java_string_hash(f"{topic}#") & _MASK
            found = base, key_hash(topic, tags, KeyKind.TAG) if tags else -1
            self._topic_hashes[topic, tags] = found
        return found


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
    if longest > _KEY_BYTES_MAX or " " in texts or not texts.isascii():
        return None
    width = -(-longest // LANE_BYTES) * LANE_BYTES
    if shortest < width:
        texts = "".join([key.rjust(width, "\0") for key in keys])
    starts = _starts(bases, (longest,) if shortest == longest else sizes, len(keys))
    found = text_hashes(starts, texts.encode())
    if not shortest:
        found = array("i", [key if size else -1 for key, size in zip(found, sizes, strict=True)])
    return found
