"""The `abort` file: exists while a broker has the store open, and records how the last run ended.

    contents at start               the last run
    absent, no `abort.bak`          Kourou stopped cleanly, or the store is new
    absent, `abort.bak` exists      Java stopped cleanly
    "<pid> kourou"                  Kourou was killed, or power was lost
    "<pid> kourou sync-failed"      the same, after a failed sync: the page cache may hold pages,
                                    marked clean, that the device never received; or killed while
                                    the next start made the log durable
    "<pid>"                         Java was killed; whether a sync failed is unknown
    anything else                   power was lost while Kourou or Java wrote the file

Java writes its process id only. The note of a failed sync is written but not synced: it stays in
the page cache exactly as long as the pages that it concerns.

Source: DefaultMessageStore.createTempFile, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from kourou.decimals import is_decimal
from kourou.disk import Disk
from kourou.store.paths import ABORT, ABORT_BACKUP

log = logging.getLogger(__name__)

_NAME: Final = b"kourou"
_SYNC_FAILED: Final = b"sync-failed"
_READ_BYTES: Final = 64
_ATTEMPTS: Final = 3


class LastRun(NamedTuple):
    """State of the store after the last run.

    Attributes:
        was_clean: the last broker stopped cleanly.
        was_kourou: the last broker was Kourou; True for a new store.
        is_cache_suspect: pages in the page cache may never have reached the device.
        was_java_killed: the last broker was certainly Java, and was killed.
    """

    was_clean: bool
    was_kourou: bool
    is_cache_suspect: bool
    was_java_killed: bool = False


def read_last_run(disk: Disk) -> LastRun:
    """Return how the last run left the store; call it before `write_abort`."""
    if not disk.exists(ABORT):
        return LastRun(True, not disk.exists(ABORT_BACKUP), False)
    words = disk.read(ABORT, 0, _READ_BYTES).split()
    was_kourou = words[1:2] == [_NAME]
    is_suspect = not was_kourou or _SYNC_FAILED in words[2:]
    is_java = len(words) == 1 and is_decimal(words[0])
    return LastRun(False, was_kourou, is_suspect, was_java_killed=is_java)


def write_abort(disk: Disk, pid: int) -> None:
    """Record, durably, that process `pid` of Kourou has the store open."""
    disk.truncate(ABORT, 0)
    disk.write(ABORT, 0, [b"%d %b" % (pid, _NAME)])
    disk.sync(ABORT)
    if disk.exists(ABORT_BACKUP):
        disk.unlink(ABORT_BACKUP)
    disk.sync_directory("")


def note_failed_sync(disk: Disk) -> None:
    """Record that a sync failed; on any thread.

    Logs an error instead of raising it: the caller already reports the failed sync. The disk has
    just failed, so that the first attempt may fail as well.
    """
    failed: OSError | None = None
    for _ in range(_ATTEMPTS):
        try:
            _append_note(disk)
        except OSError as error:
            failed = error
        else:
            return
    log.warning("abort.write_failed path=%s error=%s", disk.root, failed)


def _append_note(disk: Disk) -> int:
    """Add the note unless it is there; return the size of the file before."""
    data = disk.read(ABORT, 0, _READ_BYTES)
    if _SYNC_FAILED not in data.split():
        disk.write(ABORT, len(data), [b" " + _SYNC_FAILED])
    return len(data)


@contextmanager
def noted_syncs(disk: Disk, last_run: LastRun) -> Iterator[None]:
    """Note a failed sync before the syncs of a start, and remove the note after all of them.

    A disk that fails in a sync may not take a note any more, and what was written may be lost. No
    effect after a clean stop, or where the last run has left a note.

    Raises:
        OSError: the note cannot be written or removed.
    """
    if last_run.was_clean or last_run.is_cache_suspect:
        yield
        return
    size = _append_note(disk)
    yield
    disk.truncate(ABORT, size)


def remove_abort(disk: Disk) -> None:
    """Record, durably, that the store was closed with all its files durable."""
    disk.unlink(ABORT)
    disk.sync_directory("")
