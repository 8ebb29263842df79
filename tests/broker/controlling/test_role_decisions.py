"""Decisions of a broker about the answers of its controller."""

from __future__ import annotations

import pytest

from kourou.broker.controlling.controllers import ReplicaSet
from kourou.broker.controlling.role_decisions import Decision, decide
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
