"""Truncates the log of a closed store at a record; a plan first shows what would be removed.

It serves a log with a lost or damaged end that was durable, which recovery refuses to truncate by
itself; to undo everything after some record; or a replica whose log has an end that its master's
lacks, because it was not acknowledged before a failover.

    step       left by a crash after this step
    acks       the mark of what a replica acknowledged is lowered, or says what is about to be lost
    note       a store that recovers at the next start; nothing is truncated
    mark, cut  the next start finishes it: `store/recovery/cut.py`
    rebuild    timer files rebuilt from the remaining log; the complete store. Not by a replica:
               those of a slave stay if they depend on nothing that was cut, and are otherwise
               rebuilt while it follows its master

A broker clamps the offsets of groups when it starts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kourou.disk import Disk
from kourou.protocol.record.keys import is_visible
from kourou.store.log.log_walk import LogPiece, PieceKind, Progress, walk_log, with_damage
from kourou.store.paths import COMMITLOG
from kourou.store.recovery.cut import Cut, mark_cut
from kourou.store.state.ack_mark import lower_ack_mark, note_loss
from kourou.store.state.file_sizes import find_sizes, log_files
from kourou.store.tools.closed_store import (
    locked,
    rebuild_closed_timers,
    record_change,
    recover_and_close,
)


@dataclass(slots=True)
class Truncation:
    """A planned truncation, and what it would remove.

    Attributes:
        position: the log's new end; the start of a record, or of damage.
        end: the log's current end, including damage after its last record.
        problem: the kind of damage at `position`; empty if a record begins there.
        records: number of valid records to remove.
        messages: number of them that consumers can see, by topic.
        damaged_bytes: bytes of damage to remove.
        first_at_ms: store time of the first record to remove.
        last_kept: the last record that stays; None if there is none.
    """

    position: int
    end: int = 0
    problem: str = ""
    records: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    damaged_bytes: int = 0
    first_at_ms: int | None = None
    last_kept: LogPiece | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the log to remove."""
        return max(0, self.end - self.position)


def truncate_replica(disk: Disk, position: int, now_ms: int, *, pid: int) -> None:
    """Truncate the log of a replica at a record, durably, as far as it is longer.

    Reads the log from the segment before the position on. Leaves no timer files.

    Raises:
        StoreLockedError: the store is open; nothing was changed.
        StoreError: the store cannot be opened afterwards; the log is truncated.
        OSError: a file cannot be read or written; truncate again.
    """
    segment_bytes = find_sizes(disk).segment_bytes
    start = max(0, position - position % segment_bytes - segment_bytes)
    plan = plan_truncation(disk, position, start=start)
    if plan is not None:
        with locked(disk):
            lower_ack_mark(disk, plan.position)
        _truncate(disk, plan, now_ms, pid=pid)


def plan_truncation(
    disk: Disk, position: int | None, progress: Progress | None = None, *, start: int = 0
) -> Truncation | None:
    """Return the plan of a truncation; changes nothing.

    Args:
        disk: holds the store, which must be closed.
        position: a log position; the record or damage that contains it is removed too. None: the
            position of the first damage.
        progress: called with the progress of reading the log.
        start: where to begin to read; at or before `position`.

    Returns:
        None if there is nothing to remove: no damage, or the log ends before `position`.

    Raises:
        OSError: a directory cannot be read.
    """
    plan: Truncation | None = None
    last: LogPiece | None = None
    files = log_files(disk, COMMITLOG)
    sizes = find_sizes(disk)
    pieces = walk_log(disk, files, sizes.segment_bytes, start=start, progress=progress)
    for piece in with_damage(pieces):
        if piece.kind is PieceKind.UNUSED:
            continue
        is_there = piece.kind is PieceKind.DAMAGE if position is None else piece.end > position
        if plan is None and is_there:
            plan = Truncation(piece.position, problem=piece.problem, last_kept=last)
        if plan is not None:
            _add_piece(plan, piece)
        elif piece.kind is PieceKind.RECORD:
            last = piece._replace(buffer=b"")
    return plan


def _add_piece(plan: Truncation, piece: LogPiece) -> None:
    plan.end = piece.end
    if piece.kind is PieceKind.DAMAGE:
        plan.damaged_bytes += piece.size
    header = piece.header
    if header is not None:
        plan.records += 1
        plan.messages[header.topic] += is_visible(header.sys_flag)
        if plan.first_at_ms is None:
            plan.first_at_ms = header.store_at_ms


def truncate_log(disk: Disk, plan: Truncation, now_ms: int, *, pid: int) -> None:
    """Truncate the log as planned, durably, and recover the store.

    A replica in controller mode then counts as behind what it has acknowledged.

    Raises:
        StoreLockedError: another process has the store open; nothing was changed.
        StoreError: the store cannot be opened afterwards; the log is truncated.
        OSError: a file cannot be written; start the store to recover it, or truncate again.
    """
    with locked(disk):
        note_loss(disk, f"the log was truncated at {plan.position}")
    _truncate(disk, plan, now_ms, pid=pid)
    rebuild_closed_timers(disk, now_ms)


def _truncate(disk: Disk, plan: Truncation, now_ms: int, *, pid: int) -> None:
    last = plan.last_kept
    with locked(disk):
        record_change(disk, pid)
        if last is None or last.header is None:
            mark_cut(disk, Cut(plan.position))
        else:
            at_ms = last.header.store_at_ms
            mark_cut(disk, Cut(plan.position, last.position, last.end, at_ms))
    recover_and_close(disk, now_ms, pid=pid)
