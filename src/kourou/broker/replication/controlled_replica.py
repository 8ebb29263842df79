"""A replica of one run in controller mode: its role, its epochs with their file, its mark of acks.

Each change of the epochs is durable before it has an effect. Both the file and its backup are
replaced, so that a damaged file never restores a list that lacks an epoch, or names one that was
cut.

    start of a replica    entries at or beyond the log's end are removed: nothing was appended then
    start of a master     the new epoch begins at the log's end, before anything can be appended
    bytes of a new epoch  its entry is noted before a slave appends the first of them

Before all that, the log and the epochs are compared with the mark of what was acknowledged. A
replica that is behind it may be a slave, and no master.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kourou.broker.replication.acknowledged import Acknowledged
from kourou.broker.replication.controlled_role import ControlledRole, ControllerPort
from kourou.disk import Disk
from kourou.errors import EpochError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.store.log.damage import DamagedSpan
from kourou.store.reader import StoreReader
from kourou.store.state.ack_mark import REMEDY
from kourou.store.state.epoch_file import read_epochs, replace_epochs


class EpochLog:
    """The epochs of one log. Methods that save wait for the device.

    Attributes:
        epochs: the epochs, as they are on disk; replaced as a whole, so that any thread may read.
        newest_seen: the newest epoch that the file has named since the start, also if the log had
            no byte of it.
    """

    def __init__(self, disk: Disk, epochs: EpochList, acknowledged: Acknowledged) -> None:
        self._disk = disk
        self._acknowledged = acknowledged
        self.epochs = epochs
        self.newest_seen = epochs.last_epoch

    @classmethod
    def load(cls, disk: Disk, acknowledged: Acknowledged) -> EpochLog:
        """Return the epochs of the file, which may begin beyond the log's end.

        Args:
            disk: holds the store.
            acknowledged: the mark, which notes the newest epoch of each later change.

        Raises:
            CorruptRecordError: neither the file nor its backup is good.
            OSError: a file cannot be read.
        """
        return cls(disk, read_epochs(disk), acknowledged)

    def cut(self, log_begin: int, log_end: int) -> None:
        """Remove the epochs without a byte between the two positions, durably.

        Raises:
            OSError: the file cannot be written.
        """
        epochs = self._within(log_begin, log_end)
        if len(epochs) < len(self.epochs):
            self._save(epochs)

    def begin(self, epoch: int, log_begin: int, log_end: int) -> None:
        """Note the epoch of a new master at the end of its log, durably.

        A log without epochs, which was written without a controller, gets one entry for all of it:
        slaves then copy it from its first record on.

        Raises:
            EpochError: the epoch was used before, or a newer one was.
            OSError: the file cannot be written.
        """
        if epoch <= self.newest_seen:
            raise EpochError(
                f"the log has records of epoch {self.newest_seen}, and its master's epoch is "
                f"{epoch}: a master that starts again needs a new epoch from the controller"
            )
        epochs = self._within(log_begin, log_end)
        self._save(epochs.begin(epoch, log_end if len(epochs) else log_begin))

    def note(self, entry: EpochEntry) -> None:
        """Note that the log continues with another epoch, durably.

        Raises:
            EpochError: the epoch is not newer, or begins before the last one.
            OSError: the file cannot be written.
        """
        self._save(self.epochs.begin(entry.epoch, entry.start))

    @property
    def last_epoch(self) -> int:
        """The newest epoch with an entry; -1 if there is none."""
        return self.epochs.last_epoch

    def _within(self, log_begin: int, log_end: int) -> EpochList:
        is_empty = log_end <= log_begin
        return EpochList() if is_empty else self.epochs.cut(log_end).expire(log_begin)

    def _save(self, epochs: EpochList) -> None:
        # A crash in between must leave no mark of an epoch that the file lacks.
        if epochs.last_epoch < self.epochs.last_epoch:
            self._acknowledged.note_epochs(epochs)
        replace_epochs(self._disk, epochs)
        self._acknowledged.note_epochs(epochs)
        self.epochs = epochs
        self.newest_seen = max(self.newest_seen, epochs.last_epoch)


@dataclass(frozen=True, slots=True)
class ControlledReplica:
    """One replica in one run.

    Attributes:
        role: the decision of the controller.
        port: asks the controller for other in-sync sets; a slave does not use it.
        epochs: of the log.
        acknowledged: the mark of what it has acknowledged.
    """

    role: ControlledRole
    port: ControllerPort
    epochs: EpochLog
    acknowledged: Acknowledged

    @classmethod
    def begin(
        cls,
        disk: Disk,
        reader: StoreReader,
        role: ControlledRole,
        port: ControllerPort,
        damaged: Sequence[DamagedSpan] = (),
    ) -> ControlledReplica:
        """Load the epochs of an open store; begin the epoch of a new master, or cut a slave's.

        Nothing may have been appended or received since the store was opened. May wait for the
        device. The damaged parts of the log, found when it was opened, are noted.

        Raises:
            EpochError: the epoch of the master is not newer than those of the log, or its log may
                lack something that it has acknowledged.
            CorruptRecordError: neither the file of the epochs nor its backup is good.
            OSError: a file cannot be read or written.
        """
        begin, end = reader.min_position, reader.written_position
        acknowledged = Acknowledged.load(disk)
        epochs = EpochLog.load(disk, acknowledged)
        acknowledged.compare(epochs.epochs, begin, end)
        acknowledged.note_damage({span.position: span.size for span in damaged})
        if role.is_master and acknowledged.loss:
            raise EpochError(f"the replica must not be master: {acknowledged.loss}; {REMEDY}")
        acknowledged.begin(role.master_epoch)
        if role.is_master:
            epochs.begin(role.master_epoch, begin, end)
        else:
            epochs.cut(begin, end)
        return cls(role, port, epochs, acknowledged)

    def mark(self, stored: int) -> None:
        """Raise the mark of what was acknowledged to the end of what is stored, durably.

        Raises:
            OSError: the mark cannot be written.
        """
        self.acknowledged.advance(stored, self.epochs.epochs)
