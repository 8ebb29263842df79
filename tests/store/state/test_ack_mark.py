"""A log that lacks something that its replica has acknowledged is found out."""

from __future__ import annotations

import pytest

from kourou.model.epochs import NO_EPOCH, EpochEntry, EpochList
from kourou.store.state.ack_mark import (
    AckMark,
    find_loss,
    lower_ack_mark,
    note_loss,
    read_ack_mark,
    save_ack_mark,
)
from kourou.store.state.epoch_file import replace_epochs
from kourou.testing.disk import SimDisk

EPOCHS = EpochList([EpochEntry(1, 0), EpochEntry(3, 500)])
MARK = AckMark("boot", 800, 3, 3)


@pytest.mark.parametrize(
    ("mark", "begin", "end", "loss"),
    [
        (MARK, 0, 800, ""),
        (MARK, 0, 9_000, ""),
        (MARK, 0, 799, "ends at 799"),
        (AckMark("", 500, 1), 0, 800, ""),
        (AckMark("", 501, 1), 0, 800, "names 3"),
        (AckMark("", 900, 4), 0, 900, "in epoch 4"),
        (AckMark("", 900, NO_EPOCH), 0, 900, ""),
        (AckMark("", 800, 4), 800, 900, ""),  # expired
        (AckMark(loss="it was cut"), 0, 900, "it was cut"),
        (AckMark(), 0, 0, ""),
    ],
)
def test_a_log_is_compared_with_the_mark(mark: AckMark, begin: int, end: int, loss: str) -> None:
    found = find_loss(mark, EPOCHS, begin, end)
    assert loss in found
    assert bool(loss) == bool(found)


def test_the_mark_is_durable_and_a_damaged_one_is_a_loss() -> None:
    disk = SimDisk()
    assert read_ack_mark(disk) is None
    save_ack_mark(disk, MARK)
    disk.crash()
    assert read_ack_mark(disk) == MARK

    text = disk.read("config/kourou-acks.json", 0, 1000)
    disk.write("config/kourou-acks.json", text.index(b"800"), [b"700"])
    found = read_ack_mark(disk)
    assert found is not None
    assert "damaged" in found.loss


def test_a_mark_without_its_seal_is_damaged() -> None:
    disk = SimDisk()
    save_ack_mark(disk, MARK)
    disk.truncate("config/kourou-acks.json", 0)
    found = read_ack_mark(disk)
    assert found is not None
    assert "damaged" in found.loss


def test_a_truncation_to_the_masters_log_lowers_the_mark() -> None:
    disk = SimDisk()
    replace_epochs(disk, EPOCHS)
    lower_ack_mark(disk, 100)
    assert read_ack_mark(disk) is None

    save_ack_mark(disk, MARK)
    lower_ack_mark(disk, 900)
    assert read_ack_mark(disk) == MARK
    lower_ack_mark(disk, 500)
    assert read_ack_mark(disk) == AckMark("boot", 500, 1, 3)


def test_a_truncation_lowers_the_newest_epoch_beyond_the_mark_too() -> None:
    disk = SimDisk()
    replace_epochs(disk, EPOCHS)
    newest = EPOCHS.last_epoch
    start = list(EPOCHS)[-1].start
    save_ack_mark(disk, AckMark(position=10, epoch=1, newest_epoch=newest))
    lower_ack_mark(disk, start)
    found = read_ack_mark(disk)
    assert found is not None
    assert (found.position, found.newest_epoch) == (10, EPOCHS.cut(start).last_epoch)


def test_only_the_first_loss_is_noted_and_none_without_a_mark() -> None:
    disk = SimDisk()
    note_loss(disk, "one")
    assert read_ack_mark(disk) is None

    save_ack_mark(disk, MARK)
    note_loss(disk, "one")
    note_loss(disk, "two")
    assert read_ack_mark(disk) == AckMark("boot", 800, 3, 3, "one")
