"""Cut of a log's end, which a durable mark finishes after a crash at any step.

A cut that a crash interrupts can leave an end that is valid again: its zeros were not durable. The
mark is durable before the first change, and is removed before anything is appended. The opening of
the store runs the steps, so that an interrupted cut is finished by the next opening:

    step       left by a crash after this step
    mark       `config/kourou-cut.json`: the next opening begins with the next step
    lower      the same; the checkpoint names the last record that stays
    index      the same; removed index files are rebuilt
    timers     the same; no timer files if they depend on what is cut: they are rebuilt from the log
    log        the same; segments are removed from the last one back, and zeros after the end are
               durable
    epochs     the same; a replica ignores epochs beyond its log's end
    recover    the same; queues are truncated like the log
    clear      the complete store, as after a kill

If Java has used the store since, the mark has no effect: it may have appended.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from kourou.disk import Disk
from kourou.errors import CorruptRecordError, MalformedBodyError
from kourou.store.formats import Checkpoint
from kourou.store.index.index_file import remove_index_from
from kourou.store.paths import COMMITLOG, CONFIG
from kourou.store.state.abort_file import read_last_run
from kourou.store.state.checkpoint import load_checkpoint, lower_checkpoint
from kourou.store.state.config_file import read_sealed, replace_sealed
from kourou.store.state.epoch_file import cut_epochs
from kourou.store.state.file_sizes import LogFile, find_sizes, log_files
from kourou.store.timer.timer_rebuild import cut_timer_files

log = logging.getLogger(__name__)

CUT_MARK: Final = f"{CONFIG}/kourou-cut.json"


class Cut(msgspec.Struct, frozen=True):
    """The mark's contents.

    Attributes:
        position: the log's new end.
        last_position, last_end, last_at_ms: of the last record that stays; 0 if there is none.
    """

    position: int
    last_position: int = 0
    last_end: int = 0
    last_at_ms: int = 0


def read_cut(disk: Disk) -> Cut | None:
    """Return the cut that is not finished; None if there is none.

    Raises:
        CorruptRecordError: the mark is damaged.
        OSError: it cannot be read.
    """
    try:
        text = read_sealed(disk, CUT_MARK)
        return None if text is None else msgspec.json.decode(text, type=Cut)
    except (MalformedBodyError, msgspec.DecodeError) as error:
        remedy = "remove it, and truncate the log again with `kourou store truncate`"
        problem = f"the mark of a truncation is bad: {error}; {remedy}"
        raise CorruptRecordError(CUT_MARK, 0, problem) from error


def mark_cut(disk: Disk, cut: Cut) -> None:
    """Let the next opening cut the log; durable when this returns.

    The store is locked, and marked as not closed cleanly.

    Raises:
        OSError: the mark cannot be written; the next opening may cut the log or not.
    """
    replace_sealed(disk, CUT_MARK, msgspec.json.encode(cut))


def run_cut(disk: Disk) -> None:
    """Cut the log if a mark says so, durably; the store is locked, and not open yet.

    Raises:
        CorruptRecordError: the mark or the file of epochs is damaged.
        OSError: a file cannot be read or written; the next opening continues.
    """
    cut = read_cut(disk)
    if cut is None:
        return
    last_run = read_last_run(disk)
    if last_run.was_clean or not last_run.was_kourou:
        log.warning("store.cut_forgotten path=%s position=%d", disk.root, cut.position)
        clear_cut(disk)
        return
    lower_checkpoint(disk, _lowered(load_checkpoint(disk), cut))
    remove_index_from(disk, cut.position)
    cut_timer_files(disk, cut.position)
    _cut_files(disk, log_files(disk, COMMITLOG), find_sizes(disk).segment_bytes, cut.position)
    cut_epochs(disk, cut.position)
    log.warning("store.cut path=%s position=%d", disk.root, cut.position)


def clear_cut(disk: Disk) -> None:
    """Remove the mark, if there is one, durably: the cut is finished.

    Raises:
        OSError: the next opening may cut again, which is harmless if nothing is appended before.
    """
    if disk.exists(CUT_MARK):
        disk.unlink(CUT_MARK)
        disk.sync_directory(CONFIG)


def _lowered(checkpoint: Checkpoint, cut: Cut) -> Checkpoint:
    """Return the checkpoint with all fields lowered to the log's new end."""
    return checkpoint._replace(
        log_at_ms=min(checkpoint.log_at_ms, cut.last_at_ms),
        queues_at_ms=min(checkpoint.queues_at_ms, cut.last_at_ms),
        index_at_ms=min(checkpoint.index_at_ms, cut.last_at_ms),
        queues_offset=min(checkpoint.queues_offset, cut.last_position),
        # Declare the rest durable, whatever was known before: recovery then skips damage in it.
        synced_position=cut.last_end,
        confirmed_offset=min(checkpoint.confirmed_offset, cut.position),
        queue_files=0,
    )


def _cut_files(disk: Disk, files: list[LogFile], segment_bytes: int, position: int) -> None:
    """Remove the files from the position on, in reverse order; zero the rest of the last one.

    The first file is kept even if it becomes empty, since its name determines the log's positions.
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
