"""Verifying a store directory that nobody has open: every invariant, as a list of findings.

    commit log       names and sizes; record after record from the first byte, each with its own
                     position and checksum; nothing but zeros behind the last
    consume queues   names and sizes; for each visible record the entry at its queue offset with
                     its place, size and code; offsets without a hole; nothing behind the last
    checkpoint       names a record, and no time later than the log's
    config           each file, or its backup, can be read

Nothing is changed. A store that crashed has findings until it was opened once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kourou.disk import Disk
from kourou.errors import KourouError
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol import fastjson
from kourou.protocol.message_layout import RecordHeader
from kourou.store.check_queue import QueueCheck
from kourou.store.checkpoint import read_checkpoint
from kourou.store.config import StoreConfig
from kourou.store.config_file import BARE_KEYS_BYTES_MAX, ConfigFile
from kourou.store.dispatch import is_visible, light_queues, queue_tags_code
from kourou.store.findings import CheckReport, Finding
from kourou.store.formats import QueueEntry
from kourou.store.log_scan import LogScan, used_bytes
from kourou.store.made_with import sizes_made_with
from kourou.store.paths import (
    ABORT,
    BATCH_CONSUMEQUEUE,
    CHECKPOINT,
    COMMITLOG,
    CONFIG,
    CONSUMEQUEUE,
    is_safe_topic,
    queue_directory,
    topic_directory,
)
from kourou.store.segment_list import SegmentList
from kourou.store.store_state import StoreStateFile

__all__ = ["CheckReport", "Finding", "check_store"]

Progress = Callable[[int, int], None]
"""Told (bytes of the log read, bytes of all its files) now and then."""

_PROGRESS_RECORDS: Final = 4096
_TOPICS: Final = f"{CONFIG}/topics.json"


def check_store(disk: Disk, *, progress: Progress | None = None) -> CheckReport:
    """Return what is wrong with the store on the disk; no findings if it is in order.

    Nobody may have it open meanwhile.

    Raises:
        OSError: a file cannot be read.
    """
    return _Check(disk, progress).run()


def _parse(text: bytes) -> object:
    return fastjson.loads(text, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX)


class _Check:
    """One walk over a store."""

    def __init__(self, disk: Disk, progress: Progress | None) -> None:
        self._disk = disk
        self._progress = progress
        self._findings: list[Finding] = []
        defaults = StoreConfig()
        sizes = sizes_made_with(disk)
        self._queue_bytes = sizes.get("consumequeue_file_bytes", defaults.consumequeue_file_bytes)
        self._log = SegmentList(
            disk,
            COMMITLOG,
            sizes.get("commitlog_segment_bytes", defaults.commitlog_segment_bytes),
        )
        self._checkpoint = read_checkpoint(disk).numbers
        self._is_checkpoint_seen = False
        self._last_store_at_ms = 0
        self._queues: dict[tuple[str, int], QueueCheck] = {}
        self._unshown_topics = frozenset(disk.list(BATCH_CONSUMEQUEUE))
        self._deleted_below: dict[str, int] = {}
        self._known_topics: frozenset[str] | None = None  # None: no topic is known to be gone

    def run(self) -> CheckReport:
        if self._disk.exists(ABORT):
            self._find(ABORT, 0, "the store was not closed cleanly: opening it recovers it")
        self._check_config()
        self._load(self._log)
        self._load_queues()
        records, end = self._check_log()
        for check in self._queues.values():
            self._findings += check.finish()
        self._check_checkpoint(end)
        return CheckReport(self._findings, records, len(self._queues), end - self._log.first)

    def _find(self, file: str, offset: int, problem: str) -> None:
        self._findings.append(Finding(file, offset, problem))

    def _check_config(self) -> None:
        """Check that each config file can be loaded, and note which topics are no more."""
        for name in self._disk.list(CONFIG):
            if name.endswith(".json"):
                self._parse_config(f"{CONFIG}/{name}")
        topics = self._parse_config(_TOPICS)
        table = topics.get("topicConfigTable") if isinstance(topics, dict) else None
        if isinstance(table, dict):
            # Java deletes a topic without a note: its config and its queues are gone, no more.
            self._known_topics = frozenset(table) | frozenset(self._disk.list(CONSUMEQUEUE))
        try:
            state = StoreStateFile(self._disk).read()
        except KourouError:
            return  # found already
        self._deleted_below = state.deleted_topics if state is not None else {}

    def _parse_config(self, name: str) -> object:
        try:
            data = ConfigFile(self._disk, name, _parse).load()
        except KourouError as error:
            self._find(name, 0, str(error))
            return None
        return None if data is None else _parse(data)

    def _load(self, segments: SegmentList) -> None:
        """Take up the files of a log or queue, and check their names and sizes."""
        try:
            behind_gap = segments.load()
        except KourouError as error:
            self._find(segments.directory, 0, str(error))
            return
        if behind_gap:
            self._find(segments.name(segments.end), 0, "the file is missing, and later ones exist")
        for start in segments.starts():
            name = segments.name(start)
            size = self._disk.size(name)
            if size != segments.file_bytes:
                self._find(name, size, f"{size} bytes long, must be {segments.file_bytes}")

    def _load_queues(self) -> None:
        for topic in self._disk.list(CONSUMEQUEUE):
            for name in self._disk.list(topic_directory(topic)):
                if name.isdecimal() and name == str(int(name)):
                    self._queue(topic, int(name))
                else:
                    self._find(f"{topic_directory(topic)}/{name}", 0, "no queue has such a name")

    def _queue(self, topic: str, queue_id: int) -> QueueCheck:
        check = self._queues.get((topic, queue_id))
        if check is None:
            segments = SegmentList(self._disk, queue_directory(topic, queue_id), self._queue_bytes)
            self._load(segments)
            check = QueueCheck(self._disk, segments, self._log.first)
            self._queues[topic, queue_id] = check
        return check

    def _check_log(self) -> tuple[int, int]:
        """Check the log and what the queues hold of it; return its records and where it ends."""
        scan, records = LogScan(self._disk, self._log, self._log.first), 0
        for header, buffer in scan:
            records += 1
            self._check_record(header, buffer)
            if self._progress is not None and records % _PROGRESS_RECORDS == 0:
                self._progress(scan.position - self._log.first, self._log.end - self._log.first)
        end = scan.position
        name, at = self._log.name(end), end % self._log.file_bytes
        if scan.problem:
            self._find(name, at, f"no record: {scan.problem}")
        elif end < self._log.end and used_bytes(self._disk, self._log, end):
            self._find(name, at, "the log ends here, and something other than zeros follows")
        for start in self._log.starts():
            if start > end and used_bytes(self._disk, self._log, start):
                self._find(self._log.name(start), 0, f"the log ended before, in {name}")
        return records, end

    def _check_record(self, header: RecordHeader, buffer: bytes) -> None:
        """Check the queue entries of one record."""
        at, topic = header.physical_offset, header.topic
        self._last_store_at_ms = max(self._last_store_at_ms, header.store_at_ms)
        self._is_checkpoint_seen |= at == self._checkpoint.queues_offset
        if not is_visible(header.sys_flag) or at < self._deleted_below.get(topic, 0):
            return
        start = header.properties_start
        properties = buffer[start : start + header.properties_size]
        code = queue_tags_code(topic.encode(), properties, header.store_at_ms, DELAY_LEVELS_MS)
        entry = QueueEntry(at, header.total_size, code)
        targets = [(topic, header.queue_id, header.queue_offset)]
        targets += [(name, 0, offset) for name, offset in light_queues(properties)]
        for name, queue_id, queue_offset in targets:
            if self._has_queue(name, queue_id):
                # The delay levels are the broker's config, which is not kept in the store.
                self._queue(name, queue_id).expect(
                    queue_offset, entry, is_code_known=name != SCHEDULE_TOPIC
                )

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        return (
            queue_id >= 0
            and is_safe_topic(topic)
            and topic not in self._unshown_topics
            and (self._known_topics is None or topic in self._known_topics)
        )

    def _check_checkpoint(self, end: int) -> None:
        checkpoint = self._checkpoint
        at = checkpoint.queues_offset
        if at >= end > 0 or (at > self._log.first and not self._is_checkpoint_seen):
            self._find(CHECKPOINT, 40, f"no record begins at byte {at} of the log")
        for file_offset, value in ((0, checkpoint.log_at_ms), (8, checkpoint.queues_at_ms)):
            if value > self._last_store_at_ms:
                self._find(
                    CHECKPOINT,
                    file_offset,
                    f"time {value} is after {self._last_store_at_ms}, the log's last",
                )
