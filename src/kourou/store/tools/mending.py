"""What tools that change a closed store have in common: the marks before, the recovery after.

Whatever a tool changes, it first makes durable what lets the next start recover from any state in
between, and it ends by opening and closing the store, which is such a start:

    step       what it does                                       a crash after it leaves
    note       `abort` is there; the state does not say what was  a store that was not closed
               closed                                             cleanly: the next start recovers
    lower      the checkpoint names nothing that is to change     the same, read from further back
    change     the tool's own                                     what the tool says
    open       recovery makes queues and log agree                the same
    close      everything is durable, `abort` goes                the store, in order
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from kourou.disk import Disk
from kourou.store.config import StoreConfig
from kourou.store.formats import Checkpoint
from kourou.store.index.index_file import HEADER, HEADER_BYTES
from kourou.store.index.key_index import IndexStep
from kourou.store.log.log_walk import read_log_record
from kourou.store.message_store import MessageStore
from kourou.store.paths import CHECKPOINT, INDEX, LOCK
from kourou.store.recovery.recovery import Progress
from kourou.store.retention import RetentionConfig
from kourou.store.state.abort_file import note_failed_sync, read_last_run, write_abort
from kourou.store.state.checkpoint import create_checkpoint, save_checkpoint
from kourou.store.state.made_with import sizes_made_with
from kourou.store.state.store_sizes import find_sizes
from kourou.store.state.store_state import StoreStateFile
from kourou.store.timer.placing import ROLL_WINDOW_SLOTS, roll_window_ms
from kourou.store.timer.remaking import (
    WaitingTimers,
    find_waiting,
    forget_timers,
    remake_timers,
)
from kourou.store.timer.timer_log import LOG_FILE_BYTES


@contextmanager
def locked(disk: Disk) -> Iterator[None]:
    """Keep everybody else from opening the store. Given up just before opening it takes it again.

    Raises:
        StoreLockedError: somebody has it open.
    """
    unlock = disk.lock(LOCK)
    try:
        yield
    finally:
        unlock()


def note_change(disk: Disk, pid: int, **state_changes: Any) -> None:  # noqa: ANN401 - its fields
    """Make durable that the store is about to change.

    Args:
        disk: the store's, which nobody has open.
        pid: of this process.
        state_changes: fields of `StoreState` that change too, where the store has one.

    Raises:
        CorruptRecordError: the store's own state cannot be read.
        OSError: nothing was changed yet.
    """
    file = StoreStateFile(disk)
    state = file.read()
    if state is not None:
        changed = msgspec.structs.replace(state, closed=None, index_position=None)
        file.save(msgspec.structs.replace(changed, **state_changes))
    suspect = read_last_run(disk).is_cache_suspect
    write_abort(disk, pid)  # in RocketMQ's place too, which our checkpoint would not count for
    if suspect:
        note_failed_sync(disk)


def lower_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint by one that claims less, durably."""
    create_checkpoint(disk)
    save_checkpoint(disk, checkpoint)
    disk.sync(CHECKPOINT)
    disk.sync_directory("")


def remove_index_from(disk: Disk, position: int) -> None:
    """Remove the files of the key index that know of records at or behind the position, durably.

    They are made again as the store is used. A file that cannot be read goes, and all behind it.
    """
    names = disk.list(INDEX)
    kept = 0
    for name in names:
        data = disk.read(f"{INDEX}/{name}", 0, HEADER_BYTES)
        if len(data) < HEADER_BYTES or HEADER.unpack(data)[3] >= position:
            break
        kept += 1
    for name in reversed(names[kept:]):
        disk.unlink(f"{INDEX}/{name}")
    if kept < len(names):
        disk.sync_directory(INDEX)


def recover_and_close(
    disk: Disk, now_ms: int, *, pid: int, progress: Progress | None = None
) -> MessageStore:
    """Open the store, so that it recovers, bring its index up, and close it; return it, closed.

    Nobody may hold its lock: opening takes it.

    Raises:
        StoreError: it cannot be opened or closed.
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


def remake_closed_timers(disk: Disk, now_ms: int, waiting: WaitingTimers | None = None) -> int:
    """Make the timer's files of a closed store anew, of its log; return how many messages wait.

    A store without messages in the timer topic gets none.

    Args:
        disk: the store's.
        now_ms: the time.
        waiting: what the log told already; None reads it.

    Raises:
        StoreLockedError: somebody has it open.
        OSError: a file cannot be read or written; the next start makes them.
    """
    with locked(disk):
        segment_bytes = find_sizes(disk).segment_bytes
        if waiting is None:
            waiting = find_waiting(disk, segment_bytes)
        forget_timers(disk)
        if not waiting.queue_offset:
            return 0
        timers = remake_timers(
            disk,
            waiting,
            lambda position: read_log_record(disk, segment_bytes, position),
            now_ms,
            log_file_bytes=LOG_FILE_BYTES,
            window_ms=roll_window_ms(ROLL_WINDOW_SLOTS, RetentionConfig().file_reserved_hours),
        )
        return timers.wheel.count


def config_of(disk: Disk) -> StoreConfig:
    """Return the options with which the store on the disk opens, whatever space is left."""
    return StoreConfig(**sizes_made_with(disk), free_bytes_min=1)  # type: ignore[arg-type]
