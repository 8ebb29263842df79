"""Prepares the store of a single broker to be that of the first master of a set.

A replicated log has an entry for each epoch, and slaves are sent the log from the first entry on. A
log that was written without controllers has none. Java's broker then enters the end of the log when
it becomes master, and never sends what lies before. Here the whole log gets an entry of its own:
epoch 0, which no controller assigns, from the first position on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kourou.disk import Disk
from kourou.errors import UsageError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.store.log.log_walk import PieceKind, walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.abort_file import read_last_run
from kourou.store.state.epoch_file import read_epochs, replace_epochs
from kourou.store.state.file_sizes import LogFile, find_sizes, log_files
from kourou.store.tools.closed_store import locked

EPOCH: Final = 0
"""The epoch of what was written before there was a controller; the first elected master gets 1."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A planned adoption.

    Attributes:
        first, end: positions at which the log begins and ends.
    """

    first: int
    end: int


def plan_adoption(disk: Disk) -> Adoption:
    """Return the plan for a closed store; changes nothing.

    Raises:
        UsageError: the log is empty or has epochs, or the store was not closed cleanly.
        CorruptRecordError: the file of epochs and its backup are damaged.
        OSError: a file cannot be read.
    """
    epochs = read_epochs(disk)
    if len(epochs):
        raise UsageError(
            f"the log has epochs, {epochs}: it is that of a replica already, which needs no "
            "adoption"
        )
    files = log_files(disk, COMMITLOG)
    end = _end(disk, files) if files else 0
    if not files or end <= files[0].start:
        raise UsageError("the log is empty: a replica can start on it as it is")
    if not read_last_run(disk).was_clean:
        raise UsageError(
            "the store was not closed cleanly, so that its log may have lost its end: start the "
            "broker as before, and stop it"
        )
    return Adoption(files[0].start, end)


def adopt_log(disk: Disk, plan: Adoption) -> None:
    """Enter the epoch of the whole log, durably.

    Raises:
        StoreLockedError: a broker has the store open; nothing was changed.
        OSError: a file cannot be written; adopt again.
    """
    with locked(disk):
        replace_epochs(disk, EpochList([EpochEntry(EPOCH, plan.first)]))


def _end(disk: Disk, files: list[LogFile]) -> int:
    """Return the end of the last record, which is in one of the last two segments."""
    end, start = 0, files[-2:][0].start
    for piece in walk_log(disk, files, find_sizes(disk).segment_bytes, start=start):
        if piece.kind is PieceKind.RECORD:
            end = piece.end
    return end
