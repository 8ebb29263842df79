"""Common steps of the tools that change a closed store: preparation before, recovery after.

Before its changes, a tool records durably that the next start must recover the store, whatever the
state of the changes. At its end it opens and closes the store, which runs that recovery:

    step       action                                             left by a crash after this step
    note       write `abort`; remove the closed state from the    a store that was not closed
               store's state file                                 cleanly: the next start recovers
    lower      move the checkpoint before everything that will    the same; recovery reads more of
               change                                             the log
    change     the tool's own changes                             documented in the tool
    open       recover: make the queues agree with the log        the same
    close      make everything durable, remove `abort`            the complete store
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from kourou.disk import Disk
from kourou.store.config import StoreConfig
from kourou.store.index.key_index import IndexStep
from kourou.store.log.log_walk import read_log_record
from kourou.store.message_store import MessageStore
from kourou.store.paths import LOCK
from kourou.store.recovery.recovery import Progress
from kourou.store.retention import RetentionConfig
from kourou.store.state.abort_file import note_failed_sync, read_last_run, write_abort
from kourou.store.state.file_sizes import detect_sizes, find_sizes
from kourou.store.state.store_state import StoreStateFile
from kourou.store.timer.slot_choice import ROLL_WINDOW_SLOTS, roll_window_ms
from kourou.store.timer.timer_log import LOG_FILE_BYTES
from kourou.store.timer.timer_rebuild import (
    WaitingTimers,
    find_waiting,
    rebuild_timers,
    remove_timer_files,
)


@contextmanager
def locked(disk: Disk) -> Iterator[None]:
    """Hold the store's lock. Release it before opening the store, which takes the lock itself.

    Raises:
        StoreLockedError: another process has the store open.
    """
    unlock = disk.lock(LOCK)
    try:
        yield
    finally:
        unlock()


def record_change(disk: Disk, pid: int, **state_changes: Any) -> None:  # noqa: ANN401 - its fields
    """Make durable that the store is about to change.

    Args:
        disk: holds the store, which must be locked.
        pid: of this process.
        state_changes: fields of `StoreState` to change too, if the store has a state file.

    Raises:
        CorruptRecordError: the store's state file cannot be read.
        OSError: a file cannot be written; the store's data is unchanged.
    """
    file = StoreStateFile(disk)
    state = file.read()
    if state is not None:
        changed = msgspec.structs.replace(state, closed=None, index_position=None)
        file.save(msgspec.structs.replace(changed, **state_changes))
    suspect = read_last_run(disk).is_cache_suspect
    write_abort(disk, pid)  # also after RocketMQ: otherwise Kourou's checkpoint would be invalid
    if suspect:
        note_failed_sync(disk)


def recover_and_close(
    disk: Disk, now_ms: int, *, pid: int, progress: Progress | None = None
) -> MessageStore:
    """Open the store, which recovers it, complete its index, close it, and return it.

    The caller must not hold the store's lock, which opening takes.

    Raises:
        StoreError: the store cannot be opened or closed.
        OSError: a file cannot be read or written.
    """
    store = MessageStore.open(disk, config_of(disk), now_ms, pid=pid, progress=progress)
    try:
        while (left := store.index_step()) is not IndexStep.IDLE:
            if left is IndexStep.BLOCKED:
                store.index_upkeep(now_ms)
    except BaseException:
        store.abandon()
        raise
    store.close(now_ms)
    return store


def rebuild_closed_timers(disk: Disk, now_ms: int, waiting: WaitingTimers | None = None) -> int:
    """Rebuild the timer's files of a closed store from its log; return the number of messages.

    A store without messages in the timer topic gets no timer files.

    Args:
        disk: holds the store.
        now_ms: the current time.
        waiting: the waiting messages, if the log has been read; None reads it.

    Raises:
        StoreLockedError: another process has the store open.
        OSError: a file cannot be read or written; the next start rebuilds them.
    """
    with locked(disk):
        segment_bytes = find_sizes(disk).segment_bytes
        if waiting is None:
            waiting = find_waiting(disk, segment_bytes)
        remove_timer_files(disk)
        if not waiting.queue_offset:
            return 0
        timers = rebuild_timers(
            disk,
            waiting,
            lambda position: read_log_record(disk, segment_bytes, position),
            now_ms,
            log_file_bytes=LOG_FILE_BYTES,
            window_ms=roll_window_ms(ROLL_WINDOW_SLOTS, RetentionConfig().file_reserved_hours),
        )
        return timers.wheel.count


def config_of(disk: Disk) -> StoreConfig:
    """Return options that open the store on the disk, with any amount of free space."""
    return StoreConfig(**detect_sizes(disk), free_bytes_min=1)  # type: ignore[arg-type]
