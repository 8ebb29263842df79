"""Key index: finds the records of a key without reading the log.

The index is derived data. It follows the log up to the synced position; no send waits for it. After
a crash it repeats the lost part. A missing or damaged file is rebuilt with all later ones while the
store serves.

`step` is cheap and never blocks, so that it can run between requests. When it returns BLOCKED,
`upkeep` does the work that blocks on the device. `step`, `upkeep` and `save` must not run
concurrently. Queries run on any thread beside them.

Source: IndexService.java, DefaultMessageStore.queryMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import StoreError
from kourou.protocol.record.read import read_record
from kourou.protocol.record.scan import LogRecord
from kourou.store.index.index_active import TAIL_BYTES_MAX, ActiveIndexFile
from kourou.store.index.index_check import IndexCheck, count_last
from kourou.store.index.index_feed import SLICE_MAX, IndexFeed
from kourou.store.index.index_file import (
    IndexFile,
    IndexHeader,
    IndexLayout,
    index_file_name,
    index_file_names,
)
from kourou.store.index.index_keys import (
    KeyEntries,
    KeyHashes,
    KeyKind,
    has_key,
    is_indexed,
    key_hash,
)
from kourou.store.index.index_log import LogCursor
from kourou.store.log.commitlog import CommitLog
from kourou.store.paths import INDEX

log = logging.getLogger(__name__)

CLOSE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the log that closing still indexes: less than a second, with messages of 1 KB."""
SEARCHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Unindexed bytes at the end of the log that a query searches: a tenth of a second."""
_CANDIDATES_MAX: Final = 4096
"""Records read by a query, so that a hash shared by many keys costs some tenths of a second."""
_RECORDS_AT_ONCE: Final = 256
_RECORDS_MIN: Final = 64
_CHUNKS_MAX: Final = 4
"""A step reads chunks of the log until it has so many records: one of 16 records takes as long as
one of 64."""
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024 - 64 * 1024
"""Limit of an answer's records: Java's clients close the connection on a frame above 16 MiB."""


class IndexStep(Enum):
    """The work left after a step."""

    IDLE = "idle"
    """Nothing."""
    MORE = "more"
    """Another step."""
    BLOCKED = "blocked"
    """`upkeep`, which may block on the device, and then another step."""


class KeyIndex:
    """The index of an open store.

    Attributes:
        position: records that begin below this log position are in the index.
        durable_at_ms: store time of the last record that is durable in the index; 0 for none.
        feed: receives the keys of appended records, so that these are not read from the log.
    """

    def __init__(self, disk: Disk, log_: CommitLog, layout: IndexLayout) -> None:
        self.durable_at_ms = 0
        self.feed = IndexFeed()
        self._disk = disk
        self._log = log_
        self._layout = layout
        self._hashes = KeyHashes()
        # Oldest first. Only the indexing thread replaces the tuple; expiry, on another thread,
        # advances the name of the first valid file.
        self._files: tuple[IndexFile, ...] = ()
        self._first_name = ""
        self._last_name = ""
        self._active: ActiveIndexFile | None = None
        self._needs_load = False  # the newest file has room, and is not loaded yet
        self._cursor = LogCursor(log_, log_.min_position)
        self._position = self._cursor.position  # lags the cursor while its records are added
        self._keys_indexed = 0  # keys of the record at the position that are in the index
        self._needs_upkeep = False  # the next step needs `upkeep` first

    @property
    def position(self) -> int:
        return self._position

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """The index's files, oldest first."""
        first_name, files = self._first_name, self._files
        if not files or files[0].name >= first_name:
            return files
        return tuple(file for file in files if file.name >= first_name)

    @property
    def has_unsaved(self) -> bool:
        """True if entries exist that are not durable."""
        return self._active is not None and self._active.header != self._active.durable_header

    @property
    def last_header(self) -> IndexHeader:
        """The header of the newest file, which shows the index's end; zeros without files."""
        files = self.files
        return files[-1].header if files else IndexHeader(0, 0, 0, 0, 0, 1)

    # Opening -----------------------------------------------------------------------------------

    def open(self, *, durable_to_ms: int | None, complete_to: int | None) -> None:
        """Open the files that are complete and agree with the recovered log.

        Removes the first file that fails and all after it; the index continues from there.

        Args:
            durable_to_ms: files with later records are removed too, because a killed Java broker
                leaves them in any state; None to keep them.
            complete_to: files with records at or after this log position are removed, because
                entries before it may be missing; None if no entries are missing.

        Raises:
            OSError: a file cannot be read or removed.
        """
        names = index_file_names(self._disk)
        check = IndexCheck(self._disk, self._log, self._layout, self._hashes)
        files = check.verified_files(names, durable_to_ms=durable_to_ms, complete_to=complete_to)
        self._last_name = names[len(files) - 1] if files else ""
        self._remove(names[len(files) :])
        self._files = tuple(files)
        self._start_behind(files)

    def _start_behind(self, files: list[IndexFile]) -> None:
        """Set the position after the last record in the files."""
        self._active = None
        self._needs_load = False
        self._keys_indexed = 0
        position = self._log.min_position
        if files:
            last = files[-1].header
            self._needs_load = last.count < self._layout.entries
            self.durable_at_ms = last.end_at_ms
            if last.end_offset >= position:
                position = last.end_offset
                self._keys_indexed = count_last(files)
        self._needs_upkeep = self._needs_load
        self._cursor = LogCursor(self._log, position)
        self._position = position

    def _remove(self, names: list[str]) -> None:
        """Remove files in reverse order, so that a crash leaves no gap."""
        for name in reversed(names):
            self._disk.unlink(f"{INDEX}/{name}")
        if names:
            self._disk.sync_directory(INDEX)

    # Indexing ----------------------------------------------------------------------------------

    def lag_bytes(self, until: int) -> int:
        """Return the bytes of the log below `until` that are not in the index yet."""
        return max(0, until - max(self.position, self._log.min_position))

    def step(self, until: int, records_max: int = SLICE_MAX) -> IndexStep:
        """Index at most `records_max` records up to `until`, which must be a record's end.

        Never blocks.

        Raises:
            OSError: the log cannot be read.
        """
        if not self._needs_upkeep and not self.lag_bytes(until):
            return IndexStep.IDLE
        self._cursor.seek(self._position)  # the previous step may have been interrupted
        entries = None if self._needs_upkeep else self._next_entries(until, records_max)
        if entries is None or not self._add_entries(entries):
            self._needs_upkeep = True
            return IndexStep.BLOCKED
        # Only now: queries search the log after the position themselves.
        self._position = self._cursor.position
        if self._active is not None and self._active.tail_bytes >= TAIL_BYTES_MAX:
            self._needs_upkeep = True
        return IndexStep.MORE if self._needs_upkeep or self.lag_bytes(until) else IndexStep.IDLE

    def _next_entries(self, until: int, records_max: int) -> KeyEntries | None:
        """Return the entries of the next records, and move the cursor after these.

        None if the log must be read and that might block.
        """
        position = max(self._position, self._log.min_position)
        next_fed = self.feed.next_from(position, until)
        if next_fed == position:
            fed = self.feed.take(position, until, records_max)
            if fed is not None:
                until = fed.end
                entries = self._hashes.of_texts(fed)
                if entries is not None:
                    self._cursor.seek(until)
                    return entries
        elif next_fed is not None:
            until = min(until, next_fed)
        records = self._next_records(until, records_max)
        if records is None:
            return None
        entries, number = self._hashes.of_records(records)
        if number < len(records):
            self._cursor.seek(records[number].start)
        return entries

    def _next_records(self, until: int, records_max: int) -> list[LogRecord] | None:
        """Return the next records of the log, from more than one chunk if they are large.

        None if the log must be read and that might block.
        """
        cursor, records = self._cursor, list[LogRecord]()
        for _ in range(_CHUNKS_MAX):
            if not cursor.read(until, may_block=False):
                return records or None
            records += cursor.next_records(until, records_max - len(records))
            if len(records) >= min(records_max, _RECORDS_MIN) or cursor.position >= until:
                break
        return records

    def _add_entries(self, entries: KeyEntries) -> bool:
        """Add entries; return False if some need a new file.

        Then the position is the record of the first entry that was not added.
        """
        offsets = entries.offsets
        first = offsets[0] if offsets else -1
        done, self._keys_indexed = self._keys_indexed, 0
        # The record at the position may have expired, and the first entry be another record's.
        if done and first == self._position:
            done = min(done, offsets.count(offsets[0]))
            entries = entries.part(done, len(offsets))
            offsets = entries.offsets
        else:
            done = 0
        added = 0 if self._active is None else self._active.add(entries)
        if added == len(offsets):
            return True
        position = offsets[added]
        is_first = position == first
        self._keys_indexed = offsets[:added].count(position) + (done if is_first else 0)
        self._position = position
        return False

    def upkeep(self, until: int, now_ms: int) -> None:
        """Do the blocking work that the next step depends on: load, create or write files; read.

        Raises:
            OSError: retry later, unless a sync failed.
        """
        if self._needs_load:
            last = self._files[-1]
            self._activate(ActiveIndexFile.load(self._disk, last.name, self._layout, last.header))
            self._needs_load = False
        if self._active is not None and self._active.is_full:
            self._seal(self._active)
        if self._active is None:
            self._add_file(now_ms)
        elif self._active.tail_bytes >= TAIL_BYTES_MAX:
            self._active.write_entries()
        if self.lag_bytes(until):
            self._cursor.read(until, may_block=True)
        self._needs_upkeep = False

    def _add_file(self, now_ms: int) -> None:
        if not self._files:
            self._disk.make_directory(INDEX)
            self._disk.sync_directory("")
        before = self._files[-1].header if self._files else None
        name = index_file_name(now_ms, self._last_name)
        file = ActiveIndexFile.create(self._disk, name, self._layout, before)
        self._last_name = name
        self._files = (*self.files, file)
        self._active = file
        log.info("index.file_created name=%s", name)

    def _activate(self, file: ActiveIndexFile) -> None:
        """Make the loaded newest file the one to which entries are added."""
        self._files = (*self.files[:-1], file)
        self._active = file

    def _seal(self, active: ActiveIndexFile) -> None:
        """Make the full file durable, and release the memory of its slots."""
        self.save()
        sealed = IndexFile(self._disk, active.name, self._layout, active.header)
        self._files = (*self.files[:-1], sealed)
        self._active = None

    def save(self) -> None:
        """Make all entries durable.

        Raises:
            OSError: they are not; entries that were durable before still are.
        """
        if self._active is not None and self.has_unsaved:
            self._active.save()
            self.durable_at_ms = self._active.durable_header.end_at_ms

    def close(self, until: int, now_ms: int) -> None:
        """Index the rest of the log up to `until`, and make the index durable.

        If more than `CLOSE_BYTES_MAX` are missing, as during a rebuild, indexes nothing more.

        Raises:
            OSError: see `upkeep` and `save`.
        """
        until_end = self.lag_bytes(until) <= CLOSE_BYTES_MAX
        while until_end and (left := self.step(until)) is not IndexStep.IDLE:
            if left is IndexStep.BLOCKED:
                self.upkeep(until, now_ms)
        self.save()

    def incomplete_from(self, end: int) -> int | None:
        """Return the position from which records below `end` are missing; None if none are."""
        return self.position if self.lag_bytes(end) else None

    def expire(self, log_min: int) -> int:
        """Remove the files whose records are all below `log_min`, but never the newest file.

        Runs on any thread beside the indexing thread; calls must not overlap each other.

        Returns:
            The number of removed files.

        Raises:
            OSError: a file cannot be removed; it is no longer part of the index.
        """
        files, expired_count = self.files, 0
        while expired_count < len(files) - 1 and files[expired_count].header.end_offset < log_min:
            expired_count += 1
        expired = files[:expired_count]
        if expired:
            self._first_name = files[expired_count].name
        for file in expired:
            self._disk.unlink(file.path)
            log.info("index.file_expired name=%s", file.name)
        if expired:
            self._disk.sync_directory(INDEX)
        return len(expired)

    # Reading -----------------------------------------------------------------------------------

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions of records that may have the key and a time in the span, newest first.

        Raises:
            OSError: a file cannot be read.
        """
        for file in reversed(self.files):
            header = file.header
            if header.begin_at_ms <= end_ms and begin_ms <= header.end_at_ms:
                try:
                    yield from file.find(key_hash, begin_ms, end_ms)
                except FileNotFoundError:
                    return  # expired meanwhile, like all older files
            if header.begin_at_ms < begin_ms:
                return


class KeyQuery(NamedTuple):
    """A query for messages.

    Attributes:
        messages_max: limit of the returned messages; the newest are returned.
        begin_ms: lowest store time, in epoch milliseconds.
        end_ms: highest store time, in epoch milliseconds.
        deleted_below: records below this log position belong to a deleted topic of the same name.
    """

    topic: str
    key: str
    kind: KeyKind
    messages_max: int
    begin_ms: int
    end_ms: int
    deleted_below: int = 0


class FoundMessages(NamedTuple):
    """The result of a query.

    Attributes:
        records: the stored bytes, in log order.
        index_at_ms: store time of the index's last record.
        index_offset: physical offset of that record.
    """

    records: list[bytes]
    index_at_ms: int
    index_offset: int


ReadRecord = Callable[[int], bytes | None]
"""Returns the verified record at a log position; None if there is none."""


def find_messages(
    query: KeyQuery, index: KeyIndex, log_: CommitLog, until: int, read: ReadRecord
) -> FoundMessages:
    """Return the newest messages with the key, as many as fit into an answer.

    The index has only hashes, and times in seconds. Each record that it names is read, verified,
    and accepted only if it has the topic, the exact key, and a store time in the span. The end of
    the log that is not indexed yet is searched too, so that a message just sent is found.

    Blocks on the device; runs on any thread.

    Args:
        query: the key, its kind, the span and the limit.
        index: may get more entries meanwhile.
        log_: may grow meanwhile.
        until: only records that end at or below this log position are returned.
        read: reads and verifies a record.

    Raises:
        OSError: a file of the index cannot be read.
    """
    last = index.last_header
    found: dict[int, bytes] = {}
    seen: set[int] = set()
    size = 0
    for offset in _candidates(query, index, log_, until):
        if len(found) >= query.messages_max or len(seen) >= _CANDIDATES_MAX:
            break
        if offset in seen:
            continue
        seen.add(offset)
        record = _verified(query, offset, read)
        if record is None:
            continue
        size += len(record)
        if found and size > _ANSWER_BYTES_MAX:
            break
        found[offset] = record
    records = [found[offset] for offset in sorted(found)]
    return FoundMessages(records, last.end_at_ms, last.end_offset)


def _candidates(query: KeyQuery, index: KeyIndex, log_: CommitLog, until: int) -> Iterator[int]:
    """Yield positions of records that may match, newest first."""
    tail_start = index.position  # read before the search, since the index may advance meanwhile
    yield from reversed(_unindexed_candidates(query, log_, tail_start, until))
    hash_ = key_hash(query.topic, query.key, query.kind)
    yield from index.find(hash_, query.begin_ms, query.end_ms)


def _unindexed_candidates(query: KeyQuery, log_: CommitLog, start: int, until: int) -> list[int]:
    """Return positions of matching records in the part of the log that is not indexed yet."""
    topic, key = query.topic.encode(), query.key.encode()
    cursor = LogCursor(log_, start)
    positions: list[int] = []
    until_read = min(until, max(start, log_.min_position) + SEARCHED_BYTES_MAX)
    while cursor.position < until_read:
        if not cursor.read(until, may_block=True):
            break
        positions += [
            record.start
            for record in cursor.next_records(until, _RECORDS_AT_ONCE)
            if record.topic == topic
            and query.begin_ms <= record.store_at_ms <= query.end_ms
            and is_indexed(record.sys_flag)
            and has_key(record.properties, key, query.kind)
        ]
    return positions


def _verified(query: KeyQuery, offset: int, read: ReadRecord) -> bytes | None:
    """Return the record at `offset` if it matches the query."""
    if offset < query.deleted_below:
        return None
    data = None
    with suppress(StoreError):  # a damaged record cannot be verified to have the key
        data = read(offset)
    if data is None:
        return None
    record = read_record(data, 0, check_crc=False)
    properties = record.properties(data)
    is_match = (
        record.topic == query.topic
        and query.begin_ms <= record.store_at_ms <= query.end_ms
        and has_key(properties, query.key.encode(), query.kind)
    )
    return data if is_match else None
