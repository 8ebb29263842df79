"""`abort`: there while a broker has the store open; it tells a start who ran last, and how.

    absent, no `abort.bak`          Kourou stopped cleanly, or the store is new
    absent, `abort.bak`             Java stopped cleanly
    "<pid> kourou"                  Kourou was killed, or power was lost
    "<pid> kourou sync-failed"      the same, after a sync of it had failed: the cache may show, as
                                    clean, what the device never got
    "<pid>"                         Java was killed; what it knew of failed syncs is not known
    anything else                   power was lost while this was written, by whomever

Java writes its process id only. The note of a failed sync is written and not synced: it lives in
the cache just as long as the pages that it is about.

Source: DefaultMessageStore.createTempFile, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.store.paths import ABORT, ABORT_BACKUP

log = logging.getLogger(__name__)

_NAME: Final = b"kourou"
_SYNC_FAILED: Final = b"sync-failed"
_READ_BYTES: Final = 64


class LastRun(NamedTuple):
    """How the store was left.

    Attributes:
        was_clean: whoever had it open stopped in order.
        was_kourou: it was Kourou; True for a new store.
        is_cache_suspect: what is in memory of the files may never have reached the device.
        was_java_killed: Java had it open, for certain.
    """

    was_clean: bool
    was_kourou: bool
    is_cache_suspect: bool
    was_java_killed: bool = False


def read_last_run(disk: Disk) -> LastRun:
    """Return how the store was left, before `write_abort` says that it is open again."""
    if not disk.exists(ABORT):
        return LastRun(True, not disk.exists(ABORT_BACKUP), False)
    words = disk.read(ABORT, 0, _READ_BYTES).split()
    was_kourou = words[1:2] == [_NAME]
    is_suspect = not was_kourou or _SYNC_FAILED in words[2:]
    is_java = len(words) == 1 and words[0].isdigit()
    return LastRun(False, was_kourou, is_suspect, was_java_killed=is_java)


def write_abort(disk: Disk, pid: int) -> None:
    """Say, durably, that process `pid` of Kourou has the store open."""
    disk.truncate(ABORT, 0)
    disk.write(ABORT, 0, [b"%d %b" % (pid, _NAME)])
    disk.sync(ABORT)
    if disk.exists(ABORT_BACKUP):
        disk.unlink(ABORT_BACKUP)
    disk.sync_directory("")


def note_failed_sync(disk: Disk) -> None:
    """Say that a sync failed; on any thread. Raises nothing: the failure itself is told already."""
    try:
        data = disk.read(ABORT, 0, _READ_BYTES)
        if _SYNC_FAILED not in data.split():
            disk.write(ABORT, len(data), [b" " + _SYNC_FAILED])
    except OSError as error:
        log.warning("abort.write_failed path=%s error=%s", disk.root, error)


def remove_abort(disk: Disk) -> None:
    """Say, durably, that the store was closed and all of it is on the device."""
    disk.unlink(ABORT)
    disk.sync_directory("")
