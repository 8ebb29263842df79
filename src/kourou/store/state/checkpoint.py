"""The checkpoint: positions up to which the files are durable, from which recovery starts.

The log's fields advance with each sync of the log. The consume queues' fields advance in rounds. A
round notes the last visible record and the queue files that are unsynced at its start; each sync of
the log covers a few of these files, until all are synced; then the checkpoint advances to that
record. A round begins every `queue_sync_interval_ms`, and earlier when the log has grown by 256 MiB
or 250,000 messages, which bounds the part of the log that recovery scans. A round costs one sync of
each queue file written since the previous one.

The file begins with Java's six fields. Kourou's own copy adds a checksum, the synced position of
the log, which advances each second, and the number of queue files when the round began: a start
that finds fewer rebuilds the queues from the whole log (`kourou.store.recovery.queue_totals`).
The last broker determines the valid fields:

    last     copy        valid
    Kourou   complete    the copy
    Kourou   absent      Java's six fields
    Kourou   damaged     none: all 0, which is always safe, since recovery reads the whole log
    Java     any         Java's six fields: the copy is older

Source: StoreCheckpoint.java, DefaultMessageStore.FlushConsumeQueueService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.store.config import StoreConfig
from kourou.store.formats import (
    CHECKPOINT_BYTES,
    COPY_AT,
    COPY_BYTES,
    ENTRY_BYTES,
    Checkpoint,
    decode_checkpoint,
    decode_checkpoint_copy,
    encode_checkpoint,
    encode_checkpoint_copy,
)
from kourou.store.paths import CHECKPOINT
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.consumequeue import count_files
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.state.abort_file import read_last_run
from kourou.store.sync_plan import SyncPlan

log = logging.getLogger(__name__)

_ROUND_BYTES: Final = 256 * 1024 * 1024
"""Growth of the log that begins a round: a second of recovery, with messages of 1 KB."""
ROUND_ENTRY_BYTES: Final = 250_000 * ENTRY_BYTES
"""Growth of the queues that begins a round: also a second of recovery, with messages of 100 bytes,
of which `_ROUND_BYTES` of log hold a million."""


class CheckpointFile(NamedTuple):
    """Contents of the file.

    Attributes:
        java_values: Java's six fields.
        copy: Kourou's copy; None if it is absent or damaged.
        is_damaged: there is a copy, and its checksum is wrong.
    """

    java_values: Checkpoint
    copy: Checkpoint | None
    is_damaged: bool


def read_checkpoint(disk: Disk) -> CheckpointFile:
    """Return the contents of the checkpoint; all 0 if the store has none."""
    if not disk.exists(CHECKPOINT):
        return CheckpointFile(Checkpoint(), None, is_damaged=False)
    data = disk.read(CHECKPOINT, 0, CHECKPOINT_BYTES)
    rest = data[COPY_AT : COPY_AT + COPY_BYTES]
    copy = decode_checkpoint_copy(rest)
    is_damaged = copy is None and bool(rest.strip(b"\0"))
    return CheckpointFile(decode_checkpoint(data), copy, is_damaged)


def load_checkpoint(disk: Disk) -> Checkpoint:
    """Return the valid checkpoint; all 0, which is always safe, if the store has none."""
    java_values, copy, is_damaged = read_checkpoint(disk)
    if not read_last_run(disk).was_kourou:
        return java_values
    if is_damaged:
        log.warning("checkpoint.damaged path=%s file=%s byte=%d", disk.root, CHECKPOINT, COPY_AT)
        return Checkpoint()
    if copy is None:
        return java_values
    if copy.java_values != java_values:
        log.warning("checkpoint.differed path=%s file=%s byte=0", disk.root, CHECKPOINT)
    return copy


def save_checkpoint(disk: Disk, value: Checkpoint) -> None:
    """Write both forms without a sync. A crash leaves the old or the new contents of each."""
    disk.write(CHECKPOINT, 0, [encode_checkpoint(value)])
    disk.write(CHECKPOINT, COPY_AT, [encode_checkpoint_copy(value)])


def create_checkpoint(disk: Disk) -> None:
    """Create the file at full size if it is absent; the caller must sync the root directory."""
    if not disk.exists(CHECKPOINT) or disk.size(CHECKPOINT) < CHECKPOINT_BYTES:
        disk.truncate(CHECKPOINT, CHECKPOINT_BYTES)


def lower_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint by one with lower positions, durably."""
    create_checkpoint(disk)
    save_checkpoint(disk, checkpoint)
    disk.sync(CHECKPOINT)
    disk.sync_directory("")


class CheckpointWriter:
    """Advances the checkpoint as files become durable, and writes it.

    Attributes:
        value: the checkpoint; `write` updates its fields of the log.
    """

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        queues: ConsumeQueueTable,
        value: Checkpoint,
        now_ms: int,
    ) -> None:
        self.value = value
        self._log_at_ms, self._synced_position = value.log_at_ms, value.synced_position
        self._disk = disk
        self._config = config
        self._queues = queues
        self._written: Checkpoint | None = None
        self._synced_offset = value.queues_offset  # in the file, synced or to be with the next plan
        self._must_sync = False
        self._target: AppendedRecord | None = None  # of the current round
        self._files = (value.queue_files, value.deleted_files)  # at the start of the round
        self._waiting: dict[str, tuple[str, ...]] = {}  # the round's files not in a sync plan yet
        self._planned: set[str] = set()  # the round's files in an unfinished sync plan
        self._round_at_ms = now_ms
        self._flushed_bytes = queues.flushed_bytes  # at the start of the round

    def begin_round(self, last_visible: AppendedRecord | None, now_ms: int) -> None:
        """Begin a round if one is due; the caller has just written the queues' tails."""
        if self._target is not None or last_visible is None:
            return
        flushed_bytes = self._queues.flushed_bytes
        since_ms = now_ms - self._round_at_ms  # negative if the clock was set back
        if (
            0 <= since_ms < self._config.queue_sync_interval_ms
            and last_visible.physical_offset - self.value.queues_offset < _ROUND_BYTES
            and flushed_bytes - self._flushed_bytes < ROUND_ENTRY_BYTES
        ):
            return
        self._round_at_ms, self._flushed_bytes = now_ms, flushed_bytes
        if last_visible.physical_offset > self.value.queues_offset:
            self._target = last_visible
            self._files = (count_files(self._queues), self._queues.deleted_files)
            self._waiting = dict(self._queues.unsynced)
            self._queues.unsynced.clear()

    def take_files(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the round's next files for a sync plan, and the directories of new ones."""
        names = tuple(islice(self._waiting, self._config.queue_files_per_sync))
        directories: dict[str, None] = {}
        for name in names:
            directories.update(dict.fromkeys(self._waiting.pop(name)))
            self._planned.add(name)
        if self._must_sync:
            self._must_sync = False
            names = (*names, CHECKPOINT)
        return names, tuple(directories)

    def synced(self, plan: SyncPlan, synced_position: int) -> None:
        """Record that the plan's files are durable.

        Runs before the reply to a send. Building a new `value` here took a fiftieth of the round
        trip of a producer that sends one message at a time, so that `write` does it.
        """
        self._log_at_ms = max(self._log_at_ms, plan.store_at_ms)
        self._synced_position = synced_position
        target = self._target
        if target is None:
            return
        self._planned.difference_update(plan.queue_files)
        if not self._waiting and not self._planned and target.end <= synced_position:
            self._target = None
            self._set_queues_durable(target)

    def sync_remaining(self) -> None:
        """Sync the remaining files of the round and end it; the checkpoint does not move."""
        names = (*self._waiting, *self._planned)
        directories = {name for new_in in self._waiting.values() for name in new_in}
        self._disk.sync_all(names, sorted(directories))
        self._waiting.clear()
        self._planned.clear()
        self._target = None

    def advance_to_end(self, last: AppendedRecord) -> None:
        """Move the checkpoint to the last record; the log and all queues must be synced."""
        self._files = (count_files(self._queues), self._queues.deleted_files)
        self._set_queues_durable(last)
        self._log_at_ms = max(self._log_at_ms, last.store_at_ms)
        self._synced_position = max(self._synced_position, last.end)

    def set_index_durable(self, at_ms: int) -> None:
        """Record the store time up to which the key index is durable."""
        if at_ms != self.value.index_at_ms:
            self.value = self.value._replace(index_at_ms=at_ms)

    def set_master_flushed(self, offset: int) -> None:
        """Record the position up to which the master is said to be durable."""
        self.value = self.value._replace(master_flushed_offset=offset)

    def _set_queues_durable(self, last: AppendedRecord) -> None:
        self.value = self.value._replace(
            queues_at_ms=max(self.value.queues_at_ms, last.store_at_ms),
            queues_offset=max(self.value.queues_offset, last.physical_offset),
            queue_files=self._files[0],
            deleted_files=self._files[1],
        )

    def write(self) -> None:
        """Write the checkpoint if it has moved; an older one after a crash is safe.

        After the end of a round, the next sync plan of the queues syncs it.
        """
        self.value = self.value._replace(
            log_at_ms=self._log_at_ms, synced_position=self._synced_position
        )
        if self.value == self._written:
            return
        save_checkpoint(self._disk, self.value)
        self._must_sync |= self.value.queues_offset > self._synced_offset
        self._synced_offset = self.value.queues_offset
        self._written = self.value
