"""Checks a commit log, and the queue entries of its records."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.record.keys import is_visible, light_queues, message_count, queue_tags_code
from kourou.protocol.record.layout import RecordHeader
from kourou.store.formats import QueueEntry
from kourou.store.log.log_walk import LogPiece, PieceKind, Progress, walk_log, with_damage
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import is_safe_topic
from kourou.store.state.file_sizes import LogFile
from kourou.store.tools.check_batch_queue import BatchQueueCheck
from kourou.store.tools.check_queue import QueueCheck
from kourou.store.tools.findings import Finding

MISSING_FILE: Final = "the file is missing"


class LogBounds(NamedTuple):
    """Limits of the check; None: up to the end, after which there must be only zeros.

    Attributes:
        log: records that end at or below this position are checked.
        queues: entries of records that begin at or below this position are checked.
    """

    log: int | None = None
    queues: int | None = None


class TopicRules(NamedTuple):
    """Rules for records without a queue entry.

    Attributes:
        deleted_below: for each deleted topic, the position below which its records have no entry.
        existing: existing topics; None: every topic counts as existing.
    """

    deleted_below: dict[str, int]
    existing: frozenset[str] | None

    def needs_entry(self, topic: str, queue_id: int, at: int) -> bool:
        """Tell whether a record at log position `at` must have an entry in the queue."""
        return (
            queue_id >= 0
            and is_safe_topic(topic)
            and at >= self.deleted_below.get(topic, 0)
            and (self.existing is None or topic in self.existing)
        )


class LogCheck:
    """One pass over a log.

    Attributes:
        findings: problems of the log.
        records: number of valid records.
        end: end position of the last of them, or of the blank that follows it.
        last_store_at_ms: the latest store time.
        starts_seen: the watched positions at which a record begins.
    """

    def __init__(
        self,
        disk: Disk,
        segments: SegmentList,
        rules: TopicRules,
        bounds: LogBounds,
        queue_of: Callable[[str, int], QueueCheck | BatchQueueCheck],
        watched: AbstractSet[int],
        on_record: Callable[[RecordHeader, bytes], None] = lambda *_: None,
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._rules = rules
        self._bounds = bounds
        self._queue_of = queue_of
        self._watched = watched
        self._on_record = on_record
        self._damages: list[LogPiece] = []
        self.findings: list[Finding] = []
        self.records = 0
        self.end = segments.first
        self.last_store_at_ms = 0
        self.starts_seen: set[int] = set()

    def run(self, files: list[LogFile], progress: Progress | None) -> None:
        """Read the log once and check it."""
        step = self._segments.file_bytes
        for piece in with_damage(walk_log(self._disk, files, step, progress=progress)):
            if self._bounds.log is not None and piece.position >= self._bounds.log:
                break
            if piece.kind is PieceKind.DAMAGE:
                self._damages.append(piece)
            elif piece.kind is not PieceKind.UNUSED:
                self.end = piece.end
                if piece.header is not None:
                    self.records += 1
                    self._check_record(piece.header, piece.buffer)
            elif self._bounds.log is not None:
                self._damages.append(piece._replace(problem="zeros"))
        self._report_damage()

    def damage_at(self, position: int) -> LogPiece | None:
        """Return the damage that contains the position, if the pass has reached it."""
        return next(
            (one for one in reversed(self._damages) if one.position <= position < one.end), None
        )

    @property
    def has_damage(self) -> bool:
        """Tell whether the pass has reached any damage."""
        return bool(self._damages)

    def _report_damage(self) -> None:
        """Report the damage; kinds of damage after the last record have one cause."""
        end_name = ""
        for piece in self._damages:
            name, at = self._segments.name(piece.position), piece.position % self._file_bytes
            if piece.problem == MISSING_FILE:
                continue  # reported with the names and sizes
            if piece.problem == "zeros" and piece.position >= self.end and not end_name:
                text = "the log ends here, but bytes other than zeros follow"
            elif piece.position < self.end or self._bounds.log is not None:
                text = f"no record: {piece.problem}: {piece.size} bytes are damaged"
            elif end_name:
                text = f"the log ends before this file, in {end_name}"
            elif piece.position > self.end:
                text = f"the log ends before this file, in {self._segments.name(self.end)}"
            else:
                text = f"no record: {piece.problem}"
            if piece.position >= self.end:
                end_name = end_name or name
            self.findings.append(Finding(name, at, text))

    @property
    def _file_bytes(self) -> int:
        return self._segments.file_bytes

    def _check_record(self, header: RecordHeader, buffer: bytes) -> None:
        """Check the queue entries of one record."""
        at, topic = header.physical_offset, header.topic
        self.last_store_at_ms = max(self.last_store_at_ms, header.store_at_ms)
        if at in self._watched:
            self.starts_seen.add(at)
        properties = header.properties(buffer)
        self._on_record(header, properties)
        if not is_visible(header.sys_flag):
            return
        if self._bounds.queues is not None and at > self._bounds.queues:
            return
        code = queue_tags_code(topic.encode(), properties, header.store_at_ms, DELAY_LEVELS_MS)
        entry = QueueEntry(at, header.total_size, code)
        targets = [(topic, header.queue_id, header.queue_offset)]
        targets += [(name, 0, offset) for name, offset in light_queues(properties)]
        for name, queue_id, queue_offset in targets:
            if not self._rules.needs_entry(name, queue_id, at if name == topic else 1 << 62):
                continue
            queue = self._queue_of(name, queue_id)
            if isinstance(queue, BatchQueueCheck):
                count = message_count(header.sys_flag, properties)
                queue.check_record(queue_offset, entry, header.store_at_ms, count, self)
            else:
                # Tags codes of delayed messages depend on the broker's config of delay levels,
                # which is not in the store.
                queue.check_record(queue_offset, entry, self, is_code_known=name != SCHEDULE_TOPIC)
