"""The checkpoint: how far the files are known to be durable, so that recovery can start there.

The log's times move with each sync of the log. Where the consume queues are durable up to moves in
rounds: a round notes the last visible record, lets a few queue files be synced at a time, beside
the log, until all that were waiting at its start are, and then moves the checkpoint to that record.
A round begins every `queue_sync_interval_ms`, and earlier when the log has grown by 256 MiB or
250,000 messages, so that what recovery scans is bounded. What a round costs: one sync of each queue
file written since.

The six numbers that Java knows begin the file. Our own copy has a checksum, how far the log is
synced, which moves each second, and how many files the queues had when a round began: a start that
finds fewer makes the queues again from all of the log (`kourou.store.recovery.noted_queues`).
Whose numbers count depends on who had the store last:

    last     copy        what counts
    Kourou   whole       the copy
    Kourou   never was   Java's six numbers
    Kourou   damaged     nothing: all 0, which is always safe, since recovery reads the whole log
    Java     any         Java's six numbers: the copy is older

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
from kourou.store.queues.consumequeue import count_files
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.queues.dispatch import Appended
from kourou.store.state.abort_file import read_last_run
from kourou.store.sync_plan import SyncPlan

log = logging.getLogger(__name__)

_ROUND_BYTES: Final = 256 * 1024 * 1024
"""Of the log: about a second of recovery, with messages of 1 KB."""
_ROUND_ENTRY_BYTES: Final = 250_000 * ENTRY_BYTES
"""Of the queues: the same with messages of 100 bytes, of which that log holds a million."""


class CheckpointFile(NamedTuple):
    """What the file holds.

    Attributes:
        numbers: the ones that Java knows.
        copy: our own; None if there is no whole one.
        is_damaged: there was a copy, and it is not what was written.
    """

    numbers: Checkpoint
    copy: Checkpoint | None
    is_damaged: bool


def read_checkpoint(disk: Disk) -> CheckpointFile:
    """Return what the checkpoint holds; all 0 if the store has none."""
    if not disk.exists(CHECKPOINT):
        return CheckpointFile(Checkpoint(), None, is_damaged=False)
    data = disk.read(CHECKPOINT, 0, CHECKPOINT_BYTES)
    rest = data[COPY_AT : COPY_AT + COPY_BYTES]
    copy = decode_checkpoint_copy(rest)
    is_damaged = copy is None and bool(rest.strip(b"\0"))
    return CheckpointFile(decode_checkpoint(data), copy, is_damaged)


def load_checkpoint(disk: Disk) -> Checkpoint:
    """Return the checkpoint that counts; all 0, which is always safe, if the store has none."""
    numbers, copy, is_damaged = read_checkpoint(disk)
    if not read_last_run(disk).was_kourou:
        return numbers
    if is_damaged:
        log.warning("checkpoint.damaged path=%s file=%s byte=%d", disk.root, CHECKPOINT, COPY_AT)
        return Checkpoint()
    if copy is None:
        return numbers
    if copy.java_knows != numbers:
        log.warning("checkpoint.differed path=%s file=%s byte=0", disk.root, CHECKPOINT)
    return copy


def save_checkpoint(disk: Disk, value: Checkpoint) -> None:
    """Write both forms; not synced. A crash leaves of each the old one or the new."""
    disk.write(CHECKPOINT, 0, [encode_checkpoint(value)])
    disk.write(CHECKPOINT, COPY_AT, [encode_checkpoint_copy(value)])


def create_checkpoint(disk: Disk) -> None:
    """Make the file at its full size if there is none; the root directory must be synced after."""
    if not disk.exists(CHECKPOINT) or disk.size(CHECKPOINT) < CHECKPOINT_BYTES:
        disk.truncate(CHECKPOINT, CHECKPOINT_BYTES)


class CheckpointKeeper:
    """Moves the checkpoint as files become durable, and writes it.

    Attributes:
        value: what the next write writes, but for how far the log is synced by then.
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
        self._synced_offset = value.queues_offset  # or about to be
        self._must_sync = False
        self._target: Appended | None = None  # of the round that goes on
        self._files = (value.queue_files, value.deleted_files)  # when it began
        self._waiting: dict[str, tuple[str, ...]] = {}  # its files that are not in a plan yet
        self._planned: set[str] = set()  # those in a plan that has not ended
        self._round_at_ms = now_ms
        self._flushed_bytes = queues.flushed_bytes  # when it began

    def begin_round(self, last_visible: Appended | None, now_ms: int) -> None:
        """Begin a round if one is due; the queues' tails must have been written just before."""
        if self._target is not None or last_visible is None:
            return
        flushed_bytes = self._queues.flushed_bytes
        since_ms = now_ms - self._round_at_ms  # less than 0 where the clock was set back
        if (
            0 <= since_ms < self._config.queue_sync_interval_ms
            and last_visible.physical_offset - self.value.queues_offset < _ROUND_BYTES
            and flushed_bytes - self._flushed_bytes < _ROUND_ENTRY_BYTES
        ):
            return
        self._round_at_ms, self._flushed_bytes = now_ms, flushed_bytes
        if last_visible.physical_offset > self.value.queues_offset:
            self._target = last_visible
            self._files = (count_files(self._queues), self._queues.deleted_files)
            self._waiting = dict(self._queues.unsynced)
            self._queues.unsynced.clear()

    def take_files(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return files for a sync plan: the round's next, and directories where they are new."""
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
        """Note what the plan made durable.

        Before the reply to whoever sends one message at a time: a new `value` took a fiftieth of
        that round trip, so that is left to `write`.
        """
        self._log_at_ms = max(self._log_at_ms, plan.store_at_ms)
        self._synced_position = synced_position
        target = self._target
        if target is None:
            return
        self._planned.difference_update(plan.queue_files)
        if not self._waiting and not self._planned and target.end <= synced_position:
            self._target = None
            self._queues_are_durable(target)

    def sync_rest(self) -> None:
        """Sync what the round that goes on still waits for, at once; there is none then."""
        names = (*self._waiting, *self._planned)
        directories = {name for new_in in self._waiting.values() for name in new_in}
        self._disk.sync_all(names, sorted(directories))
        self._waiting.clear()
        self._planned.clear()
        self._target = None

    def everything_is_durable(self, last: Appended) -> None:
        """Move the checkpoint to the last record of a log that is synced with all its queues."""
        self._files = (count_files(self._queues), self._queues.deleted_files)
        self._queues_are_durable(last)
        self._log_at_ms = max(self._log_at_ms, last.store_at_ms)
        self._synced_position = max(self._synced_position, last.end)

    def index_is_durable(self, at_ms: int) -> None:
        """Note up to which store time the key index is durable."""
        if at_ms != self.value.index_at_ms:
            self.value = self.value._replace(index_at_ms=at_ms)

    def _queues_are_durable(self, last: Appended) -> None:
        self.value = self.value._replace(
            queues_at_ms=max(self.value.queues_at_ms, last.store_at_ms),
            queues_offset=max(self.value.queues_offset, last.physical_offset),
            queue_files=self._files[0],
            deleted_files=self._files[1],
        )

    def write(self) -> None:
        """Write the checkpoint to its file if it moved; an old one that a crash leaves is safe.

        It is synced with the queues' next plan once a round is over.
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
