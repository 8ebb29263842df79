"""Cutting the log of a closed store: everything from a record on goes, and says so before.

For a log whose end was lost or damaged while it was durable, which recovery refuses to cut by
itself; or to undo what came after a moment.

    step       a crash after it leaves
    note       a store that recovers at the next start, nothing cut
    lower      the same: the checkpoint names the last record that stays
    index      the same; index files that knew of what goes are made again
    timers     no timer files: the next start makes them of the log
    cut        segments removed from the last one back: a shorter end, or all of it cut
    recover    queues cut as the log is
    remake     timer files made of what is left; the store in order

Offsets of groups are clamped when a broker starts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kourou.disk import Disk
from kourou.store.formats import Checkpoint
from kourou.store.log.log_walk import LogPiece, Piece, Progress, damage_in, walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.queues.dispatch import is_visible
from kourou.store.state.checkpoint import load_checkpoint
from kourou.store.state.store_sizes import LogFile, find_sizes, log_files
from kourou.store.timer.remaking import forget_timers
from kourou.store.tools.mending import (
    locked,
    lower_checkpoint,
    note_change,
    recover_and_close,
    remake_closed_timers,
    remove_index_from,
)


@dataclass(slots=True)
class Truncation:
    """What a cut would take.

    Attributes:
        position: where the log would end; the start of a record, or of damage.
        end: where it ends now, damage behind its last record included.
        problem: why it is no record that begins there; empty if it is one.
        records: whole ones that would go.
        messages: those of them that readers see, by topic.
        damaged_bytes: that would go.
        first_at_ms: when the first record that would go was stored.
        last_kept: the last record that would stay; None if none would.
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
        """What would go of the log."""
        return max(0, self.end - self.position)


def plan_truncation(
    disk: Disk, position: int | None, progress: Progress | None = None
) -> Truncation | None:
    """Return what cutting the log would take; nothing is changed.

    Args:
        disk: the store's, which nobody has open.
        position: a byte of the log; the record or damage that holds it goes too. None: where the
            first damage is.
        progress: told how much of the log is read.

    Returns:
        None if there is nothing to cut: no damage, or the log ends before.

    Raises:
        OSError: a directory cannot be read.
    """
    plan: Truncation | None = None
    last: LogPiece | None = None
    files = log_files(disk, COMMITLOG)
    sizes = find_sizes(disk)
    for piece in damage_in(walk_log(disk, files, sizes.segment_bytes, progress=progress)):
        if piece.kind is Piece.UNUSED:
            continue
        is_there = piece.kind is Piece.DAMAGE if position is None else piece.end > position
        if plan is None and is_there:
            plan = Truncation(piece.position, problem=piece.problem, last_kept=last)
        if plan is not None:
            _take(plan, piece)
        elif piece.kind is Piece.RECORD:
            last = piece._replace(buffer=b"")
    return plan


def _take(plan: Truncation, piece: LogPiece) -> None:
    plan.end = piece.end
    if piece.kind is Piece.DAMAGE:
        plan.damaged_bytes += piece.size
    header = piece.header
    if header is not None:
        plan.records += 1
        plan.messages[header.topic] += is_visible(header.sys_flag)
        if plan.first_at_ms is None:
            plan.first_at_ms = header.store_at_ms


def truncate_log(disk: Disk, plan: Truncation, now_ms: int, *, pid: int) -> None:
    """Cut the log as planned, durably, and recover the store.

    Raises:
        StoreLockedError: somebody has it open; nothing was changed.
        StoreError: the store cannot be opened after; the log is cut.
        OSError: a file cannot be written; the next start recovers, or the cut is made again.
    """
    with locked(disk):
        checkpoint = load_checkpoint(disk)
        note_change(disk, pid)
        lower_checkpoint(disk, _lowered(checkpoint, plan))
        remove_index_from(disk, plan.position)
        forget_timers(disk)
        _cut(disk, log_files(disk, COMMITLOG), find_sizes(disk).segment_bytes, plan.position)
    recover_and_close(disk, now_ms, pid=pid)
    remake_closed_timers(disk, now_ms)


def _lowered(checkpoint: Checkpoint, plan: Truncation) -> Checkpoint:
    """Return the checkpoint with nothing that lies behind the cut."""
    last = plan.last_kept
    at_ms = last.header.store_at_ms if last is not None and last.header is not None else 0
    return checkpoint._replace(
        log_at_ms=min(checkpoint.log_at_ms, at_ms),
        queues_at_ms=min(checkpoint.queues_at_ms, at_ms),
        index_at_ms=min(checkpoint.index_at_ms, at_ms),
        queues_offset=min(checkpoint.queues_offset, 0 if last is None else last.position),
        # Whatever was known: what was read is there, and damage before it is to be stepped over.
        synced_position=0 if last is None else last.end,
        confirmed_offset=min(checkpoint.confirmed_offset, plan.position),
        queue_files=0,
    )


def _cut(disk: Disk, files: list[LogFile], segment_bytes: int, position: int) -> None:
    """Remove the files from the position on, the last first; zero the rest of the one that stays.

    The first file stays whatever it holds: where the log begins, positions go on.
    """
    for file in reversed(files):
        if file.start >= position and file is not files[0]:
            disk.unlink(file.name)
    disk.sync_directory(COMMITLOG)
    for file in files:
        at = max(0, position - file.start)
        if at < segment_bytes and (file.start < position or file is files[0]):
            disk.truncate(file.name, at)
            disk.truncate(file.name, segment_bytes)
            disk.sync(file.name)
