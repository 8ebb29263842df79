"""Epochs are durable before they have an effect, and never tell of bytes that the log lacks."""

from __future__ import annotations

import pytest

from kourou.broker.replication.controlled_replica import ControlledReplica, EpochLog
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet, MasterClaim
from kourou.errors import EpochError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.store.state.epoch_file import read_epochs, replace_epochs
from kourou.testing.disk import SimDisk
from tests.store.rig import Rig

SET = InSyncSet(frozenset({1}), 1)


class NoController:
    async def propose(self, members: frozenset[int]) -> InSyncSet:
        raise AssertionError(members)

    def offer_role(self, silent: frozenset[int], needed: int) -> None:
        raise AssertionError(silent, needed)

    async def confirm_master(self, claim: MasterClaim) -> bool:
        raise AssertionError(claim)

    def ask_role(self) -> None:
        raise AssertionError


def master(epoch: int) -> ControlledRole:
    return ControlledRole(1, 1, epoch, "", SET)


def slave(epoch: int) -> ControlledRole:
    return ControlledRole(1, 2, epoch, "127.0.0.1:1", SET)


def begin(rig: Rig, role: ControlledRole) -> EpochLog:
    return ControlledReplica.begin(rig.disk, rig.store.reader, role, NoController()).epochs


def saved(disk: SimDisk) -> list[tuple[int, int]]:
    return [(epoch, start) for epoch, start in read_epochs(disk)]


def test_a_master_begins_its_epoch_durably_at_the_end_of_the_log() -> None:
    rig = Rig()
    begin(rig, master(1))
    end = rig.put(b"x").end

    begin(rig, master(3))
    rig.crash()

    assert saved(rig.disk) == [(1, 0), (3, end)]


def test_a_log_that_was_written_without_a_controller_belongs_to_the_first_epoch() -> None:
    rig = Rig()
    for _ in range(40):
        rig.put(b"x" * 300)
    first = rig.disk.list("commitlog")[1]
    rig.store.close(rig.now_ms)
    rig.disk.unlink(f"commitlog/{rig.disk.list('commitlog')[0]}")
    rig.open()

    begin(rig, master(1))

    assert saved(rig.disk) == [(1, int(first))]


def test_an_epoch_that_was_begun_or_seen_is_not_used_again() -> None:
    rig = Rig()
    begin(rig, master(2))
    for epoch in (1, 2):
        with pytest.raises(EpochError, match="needs a new epoch"):
            begin(rig, master(epoch))
    begin(rig, master(3))
    assert saved(rig.disk) == [(3, 0)]


def test_epochs_without_a_byte_of_the_log_are_removed_at_a_start() -> None:
    rig = Rig()
    end = rig.put(b"x").end
    replace_epochs(rig.disk, EpochList([EpochEntry(1, 0), EpochEntry(2, end)]))

    epochs = begin(rig, slave(5))

    assert (saved(rig.disk), epochs.last_epoch, epochs.newest_seen) == ([(1, 0)], 1, 2)


def test_an_empty_log_has_no_epochs() -> None:
    rig = Rig()
    replace_epochs(rig.disk, EpochList([EpochEntry(4, 0)]))

    assert begin(rig, slave(5)).newest_seen == 4

    assert saved(rig.disk) == []


def test_an_epoch_is_noted_in_the_file_and_in_its_backup() -> None:
    rig = Rig()
    rig.put(b"x")
    epochs = begin(rig, master(1))

    epochs.note(EpochEntry(2, 500))
    rig.disk.write("epochFileCheckpoint", 0, [b"?"])

    assert saved(rig.disk) == [(1, 0), (2, 500)]
    with pytest.raises(EpochError, match="not newer"):
        epochs.note(EpochEntry(2, 600))
