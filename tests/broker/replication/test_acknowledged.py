"""A replica that lost something that it has acknowledged knows it until it has joined again."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kourou.broker.replication.acknowledged import Acknowledged, note_start
from kourou.broker.replication.controlled_replica import ControlledReplica
from kourou.broker.replication.controlled_role import ControlledRole
from kourou.errors import EpochError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.store.state.abort_file import note_failed_sync, remove_abort, write_abort
from kourou.store.state.ack_mark import AckMark, read_ack_mark, save_ack_mark
from kourou.store.state.epoch_file import replace_epochs
from kourou.testing.disk import SimDisk
from tests.broker.replication.test_controlled_replica import NoController, master, slave
from tests.store.rig import Rig

EPOCHS = EpochList([EpochEntry(1, 0), EpochEntry(2, 500)])


def used(boot_id: str | None) -> SimDisk:
    """Return the disk of a broker that was ended by a kill or a power cut."""
    disk = SimDisk()
    note_start(disk, boot_id, loses_unsynced=True)
    write_abort(disk, 7)
    return disk


def loss_after(disk: SimDisk, boot_id: str | None, *, loses_unsynced: bool = True) -> str:
    note_start(disk, boot_id, loses_unsynced=loses_unsynced)
    return Acknowledged.load(disk).loss


@pytest.mark.parametrize(
    ("before", "now", "was_cut"),
    [("one", "one", False), ("one", "two", True), ("one", None, True), (None, None, True)],
)
def test_another_boot_after_an_unclean_end_is_a_power_cut(
    before: str | None, now: str | None, was_cut: bool
) -> None:
    assert bool(loss_after(used(before), now)) is was_cut
    assert loss_after(used(before), now, loses_unsynced=False) == ""


def test_a_clean_end_and_a_new_store_lose_nothing() -> None:
    disk = used("one")
    remove_abort(disk)
    assert loss_after(disk, "two") == ""
    assert loss_after(SimDisk(), "one") == ""


def test_a_store_that_was_used_without_a_controller_has_acknowledged_nothing() -> None:
    disk = SimDisk()
    write_abort(disk, 7)
    assert loss_after(disk, "one") == ""


def test_a_failed_sync_may_lose_what_was_written() -> None:
    disk = used("one")
    note_failed_sync(disk)
    assert "sync failed" in loss_after(disk, "one")


def test_the_boot_is_durable_when_the_store_opens() -> None:
    disk = used("one")
    note_start(disk, "two", loses_unsynced=False)
    disk.crash()
    assert loss_after(disk, "two") == ""


def test_a_loss_stays_known_until_the_replica_has_joined_again() -> None:
    disk = used("one")
    assert loss_after(disk, "two")
    remove_abort(disk)
    assert loss_after(disk, "two"), "also after a clean end"

    Acknowledged.load(disk).rejoin(700, EPOCHS)
    disk.crash()
    assert loss_after(disk, "two") == ""
    assert read_ack_mark(disk) == AckMark("two", 700, 2, newest_epoch=2)


def test_the_mark_rises_and_stays_after_a_loss() -> None:
    disk = SimDisk()
    acknowledged = Acknowledged.load(disk)
    acknowledged.advance(600, EPOCHS)
    acknowledged.advance(400, EPOCHS)
    assert read_ack_mark(disk) == AckMark(position=600, epoch=2)

    acknowledged.compare(EPOCHS, 0, 599)
    acknowledged.advance(900, EPOCHS)
    found = read_ack_mark(disk)
    assert found is not None
    assert (found.position, "ends at 599" in found.loss) == (600, True)


def test_a_replica_behind_its_mark_is_no_master_and_may_be_a_slave() -> None:
    rig = Rig()
    end = rig.put(b"x").end
    save_ack_mark(rig.disk, AckMark(position=end + 1))

    with pytest.raises(EpochError, match="must not be master"):
        ControlledReplica.begin(rig.disk, rig.store.reader, master(1), NoController())
    replica = ControlledReplica.begin(rig.disk, rig.store.reader, slave(2), NoController())

    assert replica.acknowledged.loss
    assert replica.acknowledged.role_epoch == 2


def test_epochs_older_than_the_mark_are_a_loss_before_they_are_cut() -> None:
    rig = Rig()
    replica = ControlledReplica.begin(rig.disk, rig.store.reader, master(1), NoController())
    replica.mark(rig.put(b"x").end)
    replica = ControlledReplica.begin(rig.disk, rig.store.reader, master(2), NoController())
    replica.mark(rig.put(b"x").end)
    older = EpochList([EpochEntry(1, 0)])
    replace_epochs(rig.disk, older)
    replica = ControlledReplica.begin(rig.disk, rig.store.reader, slave(3), NoController())

    assert "names 1 there" in replica.acknowledged.loss


def test_epochs_without_the_newest_one_are_a_loss_before_the_mark_has_risen() -> None:
    rig = Rig()
    replica = ControlledReplica.begin(rig.disk, rig.store.reader, master(1), NoController())
    replica.mark(rig.put(b"x").end)
    older = replica.epochs.epochs
    ControlledReplica.begin(rig.disk, rig.store.reader, master(2), NoController())
    rig.put(b"x")
    replace_epochs(rig.disk, older)
    rig.crash()
    replica = ControlledReplica.begin(rig.disk, rig.store.reader, slave(3), NoController())

    assert "was written in epoch 2" in replica.acknowledged.loss


def test_an_epoch_without_a_byte_that_is_removed_is_no_loss() -> None:
    rig = Rig()
    ControlledReplica.begin(rig.disk, rig.store.reader, master(1), NoController())
    rig.put(b"x")
    ControlledReplica.begin(rig.disk, rig.store.reader, master(2), NoController())
    for _ in range(2):
        replica = ControlledReplica.begin(rig.disk, rig.store.reader, slave(3), NoController())

        assert (replica.acknowledged.loss, replica.epochs.last_epoch) == ("", 1)


@pytest.mark.parametrize("role", [master(3), slave(3)], ids=["master", "slave"])
@pytest.mark.parametrize("operation", range(0, 40, 2))
def test_a_crash_while_epochs_change_is_no_loss(role: ControlledRole, operation: int) -> None:
    """The mark never names an epoch that the file does not have yet, or has no more."""
    rig = Rig()
    for epoch in (1, 2):
        ControlledReplica.begin(rig.disk, rig.store.reader, master(epoch), NoController())
        if epoch == 1:
            rig.put(b"x")
    rig.disk.fail_after(operation, OSError("killed"), ("write", "sync", "rename", "sync_directory"))
    with suppress(OSError):
        ControlledReplica.begin(rig.disk, rig.store.reader, role, NoController())
    rig.crash()
    replica = ControlledReplica.begin(rig.disk, rig.store.reader, slave(4), NoController())
    assert replica.acknowledged.loss == ""
