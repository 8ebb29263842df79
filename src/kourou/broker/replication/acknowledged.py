"""The mark of what this replica has acknowledged, kept up to date: see `store/state/ack_mark.py`.

    before the store is opened   `note_start`: a power cut that may have removed unsynced bytes
    start in a role              the log is compared with the mark; the epoch of the role is noted
    each second, and at a stop   the mark rises to what is stored
    joined another master        a loss is forgotten, and the mark is what the log has now

Only a loss of less than the last second goes unnoticed. With SYNC_FLUSH no crash loses that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from kourou.disk import Disk
from kourou.model.epochs import EpochList
from kourou.store.state.abort_file import LastRun, read_last_run
from kourou.store.state.ack_mark import (
    REMEDY,
    AckMark,
    epoch_before,
    find_loss,
    read_ack_mark,
    save_ack_mark,
)

log = logging.getLogger(__name__)


def note_start(disk: Disk, boot_id: str | None, *, loses_unsynced: bool) -> None:
    """Note this boot, and whether a power cut may have shortened the log, durably.

    Args:
        disk: holds the store, which is not open yet.
        boot_id: see `kourou.clock.boot_id`; None: any end but a clean one may be a power cut.
        loses_unsynced: whether records are acknowledged before they are synced.

    Raises:
        OSError: the mark cannot be read or written.
    """
    mark = read_ack_mark(disk)
    changed = mark or AckMark()
    if loses_unsynced and mark is not None and not mark.loss:
        loss = _lost_pages(mark, boot_id, read_last_run(disk))
        changed = msgspec.structs.replace(changed, loss=loss)
    changed = msgspec.structs.replace(changed, boot_id=boot_id or "")
    if changed != mark:
        save_ack_mark(disk, changed)


def _lost_pages(mark: AckMark, boot_id: str | None, last_run: LastRun) -> str:
    """Return why pages that were written may never have reached the device; else empty."""
    if last_run.was_clean:
        return ""
    if boot_id is None or mark.boot_id != boot_id:
        return "a power cut may have removed what was not synced (ASYNC_FLUSH)"
    if last_run.is_cache_suspect and last_run.was_kourou:
        return "a sync failed, which may have removed what was written before (ASYNC_FLUSH)"
    return ""


class Acknowledged:
    """The mark of one replica in one run. Methods that save wait for the device; any thread."""

    def __init__(self, disk: Disk, mark: AckMark) -> None:
        self._disk = disk
        self._mark = mark
        self._lock = threading.Lock()  # of changes

    @classmethod
    def load(cls, disk: Disk) -> Acknowledged:
        """Return the saved mark, or a new one.

        Raises:
            OSError: the file cannot be read.
        """
        return cls(disk, read_ack_mark(disk) or AckMark())

    @property
    def loss(self) -> str:
        """Why the log may lack something that was acknowledged; empty if it does not."""
        return self._mark.loss

    @property
    def role_epoch(self) -> int:
        """The newest epoch in which the replica had a role; 0 if unknown."""
        return self._mark.role_epoch

    @property
    def damaged(self) -> Mapping[int, int]:
        """Sizes of damaged parts of the log by position, which wait for their repair."""
        return self._mark.damaged

    def note_damage(self, damaged: Mapping[int, int]) -> None:
        """Note damaged parts of the log, durably.

        Raises:
            OSError: the mark cannot be written.
        """
        if not damaged.keys() <= self._mark.damaged.keys():
            self._change(damaged={**self._mark.damaged, **damaged})

    def clear_damage(self, position: int) -> None:
        """Note that a damaged part is repaired, or expired, durably.

        Raises:
            OSError: the mark cannot be written.
        """
        left = {at: size for at, size in self._mark.damaged.items() if at != position}
        if len(left) < len(self._mark.damaged):
            self._change(damaged=left)

    def compare(self, epochs: EpochList, log_begin: int, log_end: int) -> None:
        """Note a loss that the log of a store shows that was just opened, durably.

        Args:
            epochs: as the file of the epochs names them.
            log_begin: the first position of the log.
            log_end: its end.

        Raises:
            OSError: the mark cannot be written.
        """
        self.note_loss(find_loss(self._mark, epochs, log_begin, log_end))

    def note_loss(self, loss: str) -> None:
        """Note that the log may lack something that was acknowledged, durably; empty: no effect.

        Raises:
            OSError: the mark cannot be written.
        """
        if loss and not self._mark.loss:
            log.warning("replica.behind reason=%s remedy=%s", loss, REMEDY)
            self._change(loss=loss)

    def begin(self, role_epoch: int) -> None:
        """Note the epoch of a role before anything is acknowledged in it, durably.

        Raises:
            OSError: the mark cannot be written.
        """
        if role_epoch > self._mark.role_epoch:
            self._change(role_epoch=role_epoch)

    def note_epochs(self, epochs: EpochList) -> None:
        """Note the newest epoch of the file of epochs, durably: before it is cut, else after it.

        Raises:
            OSError: the mark cannot be written.
        """
        if epochs.last_epoch != self._mark.newest_epoch:
            self._change(newest_epoch=epochs.last_epoch)

    def advance(self, position: int, epochs: EpochList) -> None:
        """Raise the mark to the end of what is stored; no effect after a loss.

        Raises:
            OSError: the mark cannot be written.
        """
        if position > self._mark.position and not self._mark.loss:
            self._change(position=position, epoch=epoch_before(epochs, position))

    def rejoin(self, position: int, epochs: EpochList) -> None:
        """Forget the loss, since another master has what was lost, and mark what the log has.

        Raises:
            OSError: the mark cannot be written.
        """
        log.info("replica.rejoined position=%d", position)
        epoch, newest = epoch_before(epochs, position), epochs.last_epoch
        self._change(position=position, epoch=epoch, newest_epoch=newest, loss="")

    def _change(self, **changes: Any) -> None:  # noqa: ANN401 - fields of the mark
        with self._lock:
            mark = msgspec.structs.replace(self._mark, **changes)
            save_ack_mark(self._disk, mark)
            self._mark = mark
