"""Opening and closing of a store's files, in an order that is safe against a crash at any point.

    open     lock, finish a cut of the log, create directories, recover, save the file sizes,
             write `abort` durably
    close    sync the log, flush and sync the queues, complete and save the key index,
             write the checkpoint, save the end of log and queues, remove `abort` durably, unlock

So `abort` exists from before the first append until every appended record and its queue entry is
durable.

Source: DefaultMessageStore.load, start and shutdown, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kourou.disk import Disk
from kourou.store.config import StoreConfig
from kourou.store.formats import Checkpoint
from kourou.store.index.index_file import IndexLayout
from kourou.store.index.key_index import KeyIndex
from kourou.store.log.commitlog import CommitLog
from kourou.store.paths import (
    CHECKPOINT,
    COMMITLOG,
    CONFIG,
    CONSUMEQUEUE,
    LOCK,
)
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.recovery.cut import clear_cut, run_cut
from kourou.store.recovery.queue_totals import begin_totals, with_file_count
from kourou.store.recovery.recovery import Progress, Recovery, RecoveryReport
from kourou.store.state.abort_file import LastRun, read_last_run, remove_abort, write_abort
from kourou.store.state.checkpoint import CheckpointWriter, create_checkpoint, load_checkpoint
from kourou.store.state.store_state import ClosedState, StoreState, StoreStateFile

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoreFiles:
    """The files and components of an open store."""

    disk: Disk
    log: CommitLog
    queues: ConsumeQueueTable
    checkpoint: CheckpointWriter
    state_file: StoreStateFile
    state: StoreState
    recovery: RecoveryReport
    index: KeyIndex | None
    unlock: Callable[[], None]

    def save_state(self, state: StoreState) -> None:
        """Write the state durably and make it the current one."""
        self.state_file.save(state)
        self.state = state


def open_files(
    disk: Disk, config: StoreConfig, now_ms: int, *, pid: int, progress: Progress | None
) -> StoreFiles:
    """Lock, load and recover a store, or create a new one.

    Raises:
        StoreLockedError: the store is already open.
        StoreConfigError: it was created with other file sizes.
        CorruptRecordError: records that were durable cannot be read.
        OSError: a file cannot be read or written.
    """
    unlock = disk.lock(LOCK)
    try:
        run_cut(disk)
        files = _load(disk, config, now_ms, progress, unlock)
        files.save_state(files.state)
        create_checkpoint(disk)
        # Before `abort` names Kourou, because from then on recovery uses the checkpoint's copy.
        files.checkpoint.write()
        write_abort(disk, pid)
        clear_cut(disk)
    except BaseException:
        unlock()
        raise
    return files


def _load(
    disk: Disk,
    config: StoreConfig,
    now_ms: int,
    progress: Progress | None,
    unlock: Callable[[], None],
) -> StoreFiles:
    """Load the files and recover them to a consistent state."""
    for directory in (COMMITLOG, CONSUMEQUEUE, CONFIG):
        disk.make_directory(directory)
    disk.sync_directory("")
    disk.sync_directory(CONFIG)  # a killed process may have renamed a file that is read below
    state_file = StoreStateFile(disk)
    last_run = read_last_run(disk)
    state = _trusted_state(last_run, state_file.load(config))
    commitlog = CommitLog(disk, config.commitlog_segment_bytes)
    queues = ConsumeQueueTable(disk, config)
    checkpoint = load_checkpoint(disk)
    report = Recovery(
        disk,
        config,
        commitlog,
        queues,
        checkpoint=checkpoint,
        state=state,
        progress=progress,
        last_run=last_run,
    ).run()
    log.info(
        "store.opened path=%s clean=%s scanned=%d truncated=%d end=%d",
        disk.root,
        last_run.was_clean,
        report.records_scanned,
        report.truncated_bytes,
        report.end,
    )
    checkpoint = with_file_count(checkpoint, queues, state)
    return StoreFiles(
        disk,
        commitlog,
        queues,
        CheckpointWriter(disk, config, queues, checkpoint, now_ms),
        state_file,
        _open_state(state, commitlog, queues, config, report.end),
        report,
        _open_index(disk, config, commitlog, checkpoint, state, last_run),
        unlock,
    )


def _open_index(
    disk: Disk,
    config: StoreConfig,
    commitlog: CommitLog,
    checkpoint: Checkpoint,
    state: StoreState | None,
    last_run: LastRun,
) -> KeyIndex | None:
    """Return the key index, as far as it agrees with the log; None if indexing is disabled."""
    if not config.message_index_enable:
        return None
    layout = IndexLayout(config.index_slots, config.index_entries)
    index = KeyIndex(disk, commitlog, layout)
    was_java_killed = not last_run.was_clean and not last_run.was_kourou
    may_have_gap = state is not None and not last_run.was_kourou
    index.open(
        durable_to_ms=checkpoint.index_at_ms if was_java_killed else None,
        complete_to=state.index_position if state is not None and may_have_gap else None,
    )
    return index


def _trusted_state(last_run: LastRun, state: StoreState | None) -> StoreState | None:
    """Return the state without the values that a Java broker may have invalidated."""
    if state is None or last_run.was_kourou:
        return state
    return msgspec.structs.replace(state, closed=None, begins=None)


def _open_state(
    state: StoreState | None,
    commitlog: CommitLog,
    queues: ConsumeQueueTable,
    config: StoreConfig,
    end: int,
) -> StoreState:
    """Return the state of the store as it is open.

    Deletion notes are dropped once the log no longer contains their records. A note never reaches
    beyond the log's end, because a new topic of the same name may store records there.
    """
    deleted = state.deleted_topics if state is not None else {}
    return StoreState(
        config.commitlog_segment_bytes,
        config.consumequeue_file_bytes,
        {
            topic: min(below, end)
            for topic, below in deleted.items()
            if below > commitlog.min_position
        },
        index_slots=config.index_slots,
        index_entries=config.index_entries,
        batch_queue_file_bytes=config.batch_queue_file_bytes,
        begins=begin_totals(queues, commitlog.min_position),
        deleted_files=queues.deleted_files,
    )


def close_files(files: StoreFiles, last_visible: AppendedRecord | None, now_ms: int) -> None:
    """Make everything durable and remove `abort`.

    The log must be synced and dispatched to its end.

    Raises:
        OSError: `abort` remains, so that the next start recovers the store.
    """
    disk, commitlog, queues = files.disk, files.log, files.queues
    queues.flush()
    queues.sync()
    files.checkpoint.sync_remaining()
    if last_visible is not None:
        files.checkpoint.advance_to_end(last_visible)
    if files.index is not None:
        files.index.close(commitlog.synced_position, now_ms)
        files.checkpoint.set_index_durable(files.index.durable_at_ms)
    files.checkpoint.write()
    disk.sync(CHECKPOINT)
    closed = ClosedState(commitlog.written_position, sum(queue.max_offset for queue in queues))
    index_position = 0 if files.index is None else files.index.incomplete_from(closed.log_end)
    files.save_state(
        msgspec.structs.replace(
            files.state,
            closed=closed,
            index_position=index_position,
            begins=begin_totals(queues, commitlog.min_position),
        )
    )
    remove_abort(disk)
