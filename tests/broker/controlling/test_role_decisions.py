"""Decisions of a broker about the answers of its controller."""

from __future__ import annotations

import pytest

from kourou.broker.controlling.controllers import ReplicaSet
from kourou.broker.controlling.role_decisions import (
    Decision,
    decide,
    is_complete_again,
    loss_by_restore,
)
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet

ME, OTHER = 2, 1


def role(master_id: int, epoch: int, set_epoch: int = 7) -> ControlledRole:
    return ControlledRole(ME, master_id, epoch, "", InSyncSet(frozenset({ME, OTHER}), set_epoch))


def answer(master_id: int | None, epoch: int, set_epoch: int = 7) -> ReplicaSet:
    in_sync = InSyncSet(frozenset({ME, OTHER}), set_epoch)
    return ReplicaSet(master_id, "127.0.0.1:10911" if master_id else "", epoch, in_sync)


@pytest.mark.parametrize(
    ("current", "written_epoch", "found", "decision"),
    [
        # after a start
        (None, -1, answer(None, 0), Decision.ELECT),
        (None, -1, answer(OTHER, 1), Decision.CHANGE_ROLE),
        (None, -1, answer(ME, 1), Decision.CHANGE_ROLE),
        (None, 3, answer(OTHER, 3), Decision.CHANGE_ROLE),
        # a master of before the start may have lost what it wrote last
        (None, 3, answer(ME, 3), Decision.ELECT),
        (None, 3, answer(ME, 4), Decision.CHANGE_ROLE),
        # with a role
        (role(OTHER, 3), 3, answer(OTHER, 3), Decision.KEEP),
        (role(ME, 3), 3, answer(ME, 3), Decision.KEEP),
        (role(ME, 3), 3, answer(ME, 3, 8), Decision.KEEP),
        (role(ME, 3), 3, answer(OTHER, 4), Decision.CHANGE_ROLE),
        (role(OTHER, 3), 3, answer(ME, 4), Decision.CHANGE_ROLE),
        (role(OTHER, 3), 3, answer(None, 4), Decision.ELECT),
        # outdated
        (role(ME, 3), 3, answer(OTHER, 2), Decision.KEEP),
        (role(ME, 3), 3, answer(None, 2), Decision.KEEP),
    ],
)
def test_an_answer_decides_the_next_step(
    current: ControlledRole | None, written_epoch: int, found: ReplicaSet, decision: Decision
) -> None:
    assert decide(ME, current, written_epoch, found) is decision


@pytest.mark.parametrize(
    ("role_epoch", "found", "is_restored"),
    [
        (3, answer(OTHER, 4), True),
        (3, answer(OTHER, 3), False),
        (3, answer(None, 4), False),  # the end of the master
        (3, answer(None, 5), True),
        (0, answer(OTHER, 4), False),  # unknown
        (3, answer(OTHER, 4)._replace(in_sync=InSyncSet(frozenset({OTHER}), 7)), False),
        (3, answer(ME, 4)._replace(in_sync=InSyncSet(frozenset({ME}), 7)), False),
    ],
)
def test_store_that_knows_only_older_roles_was_restored(
    role_epoch: int, found: ReplicaSet, *, is_restored: bool
) -> None:
    assert bool(loss_by_restore(ME, role_epoch, found)) is is_restored


@pytest.mark.parametrize(
    ("found", "has_all", "is_complete"),
    [
        (answer(OTHER, 4), False, False),
        (answer(OTHER, 4), True, True),
        (answer(OTHER, 4)._replace(in_sync=InSyncSet(frozenset({OTHER}), 7)), False, True),
        (answer(None, 4), True, False),
        (answer(ME, 4), True, False),
        (answer(ME, 4)._replace(unclean_epoch=4), False, True),
        (answer(ME, 3)._replace(unclean_epoch=3), False, False),  # it served in it before
        (answer(ME, 4)._replace(unclean_epoch=3), False, False),
    ],
)
def test_replica_is_complete_again_when_nobody_depends_on_what_it_lost(
    found: ReplicaSet, *, has_all: bool, is_complete: bool
) -> None:
    assert is_complete_again(ME, 3, found, has_all=has_all) is is_complete
