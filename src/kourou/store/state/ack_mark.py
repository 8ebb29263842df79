"""The mark of what a replica has acknowledged, in `config/kourou-acks.json`, durable.

A replica whose log lacks something that it has acknowledged must not be elected. The mark reveals
that: it is the log's end of some moment within the last second, as durable as the flush mode
promised. A log that ends before it, or whose bytes there belong to another epoch, has lost its end:

    the log or the store was restored or truncated      its end is below the mark, unless less than
                                                        the last second is lost
    the file of epochs was cut, or replaced by `.bak`   another epoch at the mark, or it lacks the
                                                        newest one
    a power cut with ASYNC_FLUSH                        another boot, also if less is lost
    `kourou store truncate`                             it notes the loss itself

A replica that is behind its mark stays so across starts, until it has joined another master as a
new member. The file has no backup: an older mark would hide a loss. A damaged one counts as a loss.

The file of a store that is restored as a whole is as old as the log. Then the epoch of the role
reveals it, if a newer one has begun since in which the replica was a member of the in-sync set.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kourou.disk import Disk
from kourou.errors import MalformedBodyError
from kourou.model.epochs import NO_EPOCH, EpochList
from kourou.store.paths import ACK_MARK, CONFIG
from kourou.store.state.config_file import read_sealed, replace_sealed
from kourou.store.state.epoch_file import read_epochs

REMEDY: Final = (
    "it joins again by itself while another replica is master; to accept the loss instead, remove "
    f"{ACK_MARK} while the broker is stopped"
)


class AckMark(msgspec.Struct, frozen=True):
    """The file's contents.

    Attributes:
        boot_id: of the boot in which the store was last used; empty if unknown.
        position: the log was acknowledged up to here, at least.
        epoch: the epoch of the byte before `position`; `NO_EPOCH` if unknown.
        role_epoch: the newest epoch in which the replica had a role; 0 before the first.
        loss: why the log may lack something that was acknowledged; empty if it does not.
        damaged: sizes of damaged parts of the log, which were acknowledged, by log position.
        newest_epoch: the newest epoch that the file of epochs names; `NO_EPOCH` if unknown.
    """

    boot_id: str = ""
    position: int = 0
    epoch: int = NO_EPOCH
    role_epoch: int = 0
    loss: str = ""
    damaged: dict[int, int] = {}
    newest_epoch: int = NO_EPOCH


def read_ack_mark(disk: Disk) -> AckMark | None:
    """Return the mark; None if the store was never used in controller mode.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        text = read_sealed(disk, ACK_MARK)
        return None if text is None else msgspec.json.decode(text, type=AckMark)
    except (MalformedBodyError, msgspec.DecodeError) as error:
        return AckMark(loss=f"{ACK_MARK} is damaged: {error}")


def save_ack_mark(disk: Disk, mark: AckMark) -> None:
    """Replace the mark, durably.

    Raises:
        OSError: the file has the old contents, or the new ones.
    """
    if not disk.exists(CONFIG):
        disk.make_directory(CONFIG)
        disk.sync_directory("")
    replace_sealed(disk, ACK_MARK, msgspec.json.encode(mark))


def find_loss(mark: AckMark, epochs: EpochList, log_begin: int, log_end: int) -> str:
    """Return why a log may lack something that was acknowledged; empty if it does not. Pure.

    Args:
        mark: the mark.
        epochs: of the log, as the file names them.
        log_begin: the first position of the log.
        log_end: its end.
    """
    if mark.loss or log_end < mark.position:
        return mark.loss or (
            f"the log ends at {log_end}, and was acknowledged up to {mark.position}"
        )
    epoch = epoch_before(epochs, mark.position)
    if mark.epoch != NO_EPOCH and mark.position > log_begin and epoch != mark.epoch:
        return (
            f"the log up to {mark.position} was acknowledged in epoch {mark.epoch}, and the file "
            f"of epochs names {epoch} there"
        )
    if epochs.last_epoch < mark.newest_epoch:
        return (
            f"the log was written in epoch {mark.newest_epoch}, and the file of epochs ends with "
            f"{epochs.last_epoch}"
        )
    return ""


def epoch_before(epochs: EpochList, position: int) -> int:
    """Return the epoch of the byte before a log position; `NO_EPOCH` if there is none."""
    found = epochs.at(position - 1)
    return NO_EPOCH if found is None else found[0].epoch


def lower_ack_mark(disk: Disk, position: int) -> None:
    """Lower the mark, durably, before the log is truncated to its master's: nothing is lost.

    Raises:
        CorruptRecordError: the file of epochs cannot be read.
        OSError: a file cannot be read or written.
    """
    mark = read_ack_mark(disk)
    if mark is None:
        return
    epochs = read_epochs(disk)
    newest = min(mark.newest_epoch, epochs.cut(position).last_epoch)
    lowered = msgspec.structs.replace(mark, newest_epoch=newest)
    if mark.position > position:
        epoch = epoch_before(epochs, position)
        lowered = msgspec.structs.replace(lowered, position=position, epoch=epoch)
    if lowered != mark:
        save_ack_mark(disk, lowered)


def note_loss(disk: Disk, loss: str) -> None:
    """Note, durably, that something is about to be lost that a replica may have acknowledged.

    No effect on a store that was never used in controller mode.

    Raises:
        OSError: the file cannot be read or written.
    """
    mark = read_ack_mark(disk)
    if mark is not None and not mark.loss:
        save_ack_mark(disk, msgspec.structs.replace(mark, loss=loss))
