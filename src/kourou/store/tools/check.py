"""Checks every invariant of a store directory, read-only; returns a list of findings.

    commit log       names and sizes; consecutive records from the first byte, each with its own
                     position and a correct checksum; the check continues after damage; only zeros
                     after the last record
    consume queues   names and sizes; for each visible record an entry at its queue offset with its
                     position, size and tags code, or the extension unit with the tags code; no
                     missing offsets; nothing after the last entry
    batch queues     the same, with one entry per record
    index            each entry against the log, unless the store is in use; see `check_index`
    timers           wheel, timer log and check file against the log; see `check_timers`
    checkpoint       names a record, and no time later than the log's; Kourou's copy is undamaged
    config           each file, or its backup, can be read
    marks            no truncation is unfinished; a replica's log has what it has acknowledged

A store has findings after a crash, until it is opened again. Of a store in use, only the part is
checked that was durable when the check began, by the checkpoint: the log up to the synced position,
the queues up to the last record with a durable entry. Files that expire or are deleted during the
check are no findings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kourou.disk import Disk
from kourou.errors import KourouError
from kourou.protocol import fastjson
from kourou.store.formats import COPY_AT
from kourou.store.index.index_file import IndexLayout
from kourou.store.log.log_walk import Progress
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import (
    ABORT,
    BATCH_CONSUMEQUEUE,
    CHECKPOINT,
    COMMITLOG,
    CONFIG,
    CONSUMEQUEUE,
    CONSUMEQUEUE_EXT,
    INDEX,
    TOPICS,
    batch_queue_directory,
    is_queue_id,
    queue_directory,
)
from kourou.store.queues.topic_table import batch_topics
from kourou.store.state.abort_file import read_last_run
from kourou.store.state.checkpoint import read_checkpoint
from kourou.store.state.config_file import BARE_KEYS_BYTES_MAX, ConfigFile
from kourou.store.state.file_sizes import detect_sizes, find_sizes, log_files
from kourou.store.state.store_state import StoreStateFile
from kourou.store.timer.timer_log import TIMER_LOG
from kourou.store.tools.check_batch_queue import BatchQueueCheck
from kourou.store.tools.check_extension import UnitCheck
from kourou.store.tools.check_index import check_index
from kourou.store.tools.check_log import LogBounds, LogCheck, TopicRules
from kourou.store.tools.check_marks import check_marks
from kourou.store.tools.check_queue import QueueCheck
from kourou.store.tools.check_timers import TimersCheck
from kourou.store.tools.findings import CheckReport, Finding
from kourou.store.tools.log_parts import durable_end

__all__ = ["CheckReport", "Finding", "check_store"]

_ROOTS: Final[dict[str, Callable[[str, int], str]]] = {
    CONSUMEQUEUE: queue_directory,
    BATCH_CONSUMEQUEUE: batch_queue_directory,
}

_JSON_NAMES: Final = ("timermetrics", "transactionMetrics")
"""JSON config files without the suffix."""


def check_store(disk: Disk, *, progress: Progress | None = None, live: bool = False) -> CheckReport:
    """Check the store on the disk; the report has no findings if all invariants hold.

    Args:
        disk: holds the store.
        progress: called now and then with (bytes of the log read, bytes of all its files).
        live: the store may be in use; only the part that is durable now is checked. If False, it
            must be closed, and all of it is checked.

    Raises:
        OSError: a directory cannot be read.
    """
    return _Check(disk, progress, live=live).run()


def _parse(text: bytes) -> object:
    return fastjson.loads(text, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX)


class _Check:
    """One walk over a store."""

    def __init__(self, disk: Disk, progress: Progress | None, *, live: bool) -> None:
        self._disk = disk
        self._progress = progress
        self._is_live = live
        self._findings: list[Finding] = []
        # Read first: the part that it declares durable stays so during the check.
        self._checkpoint_file = read_checkpoint(disk)
        self._checkpoint = self._checkpoint_file.java_values
        if self._checkpoint_file.copy is not None and read_last_run(disk).was_kourou:
            self._checkpoint = self._checkpoint_file.copy
        self._sizes = find_sizes(disk)
        self._log = SegmentList(disk, COMMITLOG, self._sizes.segment_bytes)
        self._queues: dict[tuple[str, int], QueueCheck | BatchQueueCheck] = {}
        self._batch_topics = frozenset(batch_topics(disk))
        self._bounds = self._live_bounds() if live else LogBounds()
        self._timers = TimersCheck(disk, self._sizes.segment_bytes, is_live=live)

    def run(self) -> CheckReport:
        if not self._is_live and self._disk.exists(ABORT):
            self._report(ABORT, 0, "the store was not closed cleanly: opening it recovers it")
        rules = self._check_config()
        self._load(self._log)
        self._load_queues()
        watched = {self._checkpoint.queues_offset, self._checkpoint_file.java_values.queues_offset}
        log = LogCheck(
            self._disk,
            self._log,
            rules,
            self._bounds,
            self._queue,
            watched,
            self._timers.check_record,
        )
        log.run(log_files(self._disk, COMMITLOG), self._progress)
        self._findings += log.findings
        for queue in self._queues.values():
            self._findings += queue.finish(log, is_live=self._is_live)
        self._findings += self._timers.finish(self._log.first)
        self._check_checkpoint(log)
        if not self._is_live:
            self._check_index(log)
            self._findings += check_marks(self._disk, self._log.first, log.end)
        return CheckReport(
            self._without_removed_files() if self._is_live else self._findings,
            log.records,
            len(self._queues),
            log.end - self._log.first,
            self._timers.waiting,
        )

    def _report(self, file: str, offset: int, problem: str) -> None:
        self._findings.append(Finding(file, offset, problem))

    # A store in use ----------------------------------------------------------------------------

    def _live_bounds(self) -> LogBounds:
        """Return the positions up to which, by the checkpoint, log and queues are durable."""
        at = self._checkpoint.queues_offset
        end = durable_end(self._disk, self._checkpoint, self._sizes.segment_bytes)
        return LogBounds(end, at if at > 0 else -1)

    def _without_removed_files(self) -> list[Finding]:
        """Return the findings without those of files that expired or were deleted meanwhile."""
        first = self._log.name(log_files(self._disk, COMMITLOG)[0].start) if self._log.end else ""
        deleted = self._deleted_below()
        return [
            one
            for one in self._findings
            if not (one.file.startswith(f"{COMMITLOG}/") and one.file < first)
            and not (one.file.startswith(f"{TIMER_LOG}/") and not self._disk.exists(one.file))
            and not (
                one.file.startswith(tuple(f"{root}/" for root in (*_ROOTS, CONSUMEQUEUE_EXT)))
                and (one.file.split("/")[1] in deleted or not self._has_directory(one.file))
            )
        ]

    def _has_directory(self, file: str) -> bool:
        return self._disk.exists(file.rpartition("/")[0])

    # Config ------------------------------------------------------------------------------------

    def _check_config(self) -> TopicRules:
        """Check that each config file can be loaded; return the deleted and existing topics."""
        for name in self._disk.list(CONFIG):
            if name.endswith(".json") or name in _JSON_NAMES:
                self._parse_config(f"{CONFIG}/{name}")
        topics = self._parse_config(TOPICS)
        table = topics.get("topicConfigTable") if isinstance(topics, dict) else None
        existing: frozenset[str] | None = None
        if isinstance(table, dict):
            # Java records no deletions: a topic without config and queues counts as deleted.
            found = (frozenset(self._disk.list(root)) for root in _ROOTS)
            existing = frozenset(map(str, table)).union(*found)
        return TopicRules(self._deleted_below(), existing)

    def _deleted_below(self) -> dict[str, int]:
        try:
            state = StoreStateFile(self._disk).read()
        except KourouError:
            return {}  # already reported
        return state.deleted_topics if state is not None else {}

    def _parse_config(self, name: str) -> object:
        try:
            data = ConfigFile(self._disk, name, _parse).load()
        except KourouError as error:
            if Finding(name, 0, str(error)) not in self._findings:
                self._report(name, 0, str(error))
            return None
        return None if data is None else _parse(data)

    # Names and sizes ---------------------------------------------------------------------------

    def _load(self, segments: SegmentList) -> None:
        """Load the file list of a log or queue, and check names and sizes."""
        try:
            behind_gap = segments.load()
        except KourouError as error:
            self._report(segments.directory, 0, str(error))
            return
        if behind_gap:
            self._report(
                segments.name(segments.end), 0, "the file is missing, and later ones exist"
            )
        for start in segments.starts():
            name = segments.name(start)
            try:
                size = self._disk.size(name)
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                self._report(name, 0, f"cannot be read: {error.strerror}")
                continue
            if self._is_live and start + segments.file_bytes == segments.end:
                continue  # it may be in creation
            if size != segments.file_bytes:
                self._report(name, size, f"{size} bytes long, must be {segments.file_bytes}")

    def _load_queues(self) -> None:
        for root in _ROOTS:
            for topic in self._disk.list(root):
                for name in self._disk.list(f"{root}/{topic}"):
                    if not is_queue_id(name):
                        self._report(f"{root}/{topic}/{name}", 0, "the name is not a queue id")
                    elif (root == BATCH_CONSUMEQUEUE) == (topic in self._batch_topics):
                        self._queue(topic, int(name))

    def _queue(self, topic: str, queue_id: int) -> QueueCheck | BatchQueueCheck:
        check = self._queues.get((topic, queue_id))
        if check is None:
            is_batch = topic in self._batch_topics
            directory = _ROOTS[BATCH_CONSUMEQUEUE if is_batch else CONSUMEQUEUE](topic, queue_id)
            size = self._sizes.batch_queue_bytes if is_batch else self._sizes.queue_bytes
            segments = SegmentList(self._disk, directory, size)
            self._load(segments)
            if is_batch:
                check = BatchQueueCheck(self._disk, segments, self._log.first)
            else:
                units = UnitCheck(self._disk, topic, queue_id)
                check = QueueCheck(
                    self._disk, segments, self._log.first, units if units.has_files else None
                )
            self._queues[topic, queue_id] = check
        return check

    # The index and the checkpoint --------------------------------------------------------------

    def _check_index(self, log: LogCheck) -> None:
        sizes = detect_sizes(self._disk)
        layout = IndexLayout(sizes.get("index_slots", 0), sizes.get("index_entries", 0))
        if not self._disk.list(INDEX):
            return
        if layout.slots <= 0 or layout.entries <= 0:
            self._report(INDEX, 0, "the number of slots and entries of its files is unknown")
            return
        segment_bytes = self._sizes.segment_bytes
        is_complete = self._is_index_complete and not log.has_damage
        try:
            self._findings += check_index(
                self._disk, layout, segment_bytes, log.end, is_complete=is_complete
            )
        except (KourouError, OSError) as error:
            self._report(INDEX, 0, f"cannot be read: {error}")

    @property
    def _is_index_complete(self) -> bool:
        """Tell whether Kourou closed the store last, with all keys in the index."""
        run = read_last_run(self._disk)
        if not (run.was_clean and run.was_kourou):
            return False
        try:
            state = StoreStateFile(self._disk).read()
        except KourouError:
            return False
        return state is not None and state.closed is not None and state.index_position is None

    def _check_checkpoint(self, log: LogCheck) -> None:
        numbers = self._checkpoint_file.java_values
        if self._checkpoint_file.is_damaged:
            self._report(CHECKPOINT, COPY_AT, "the checksum of Kourou's copy is wrong")
        if self._is_live:
            return  # the broker rewrites it each second
        positions = ((40, numbers.queues_offset), (COPY_AT + 44, self._checkpoint.queues_offset))
        for file_offset, at in dict(positions).items():
            if at >= log.end > 0 or (at > self._log.first and at not in log.starts_seen):
                self._report(CHECKPOINT, file_offset, f"no record begins at log position {at}")
        for file_offset, value in ((0, numbers.log_at_ms), (8, numbers.queues_at_ms)):
            if value > log.last_store_at_ms:
                self._report(
                    CHECKPOINT,
                    file_offset,
                    f"time {value} is later than the log's last record ({log.last_store_at_ms})",
                )
