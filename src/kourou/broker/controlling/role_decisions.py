"""Decisions of a broker about the answers of its controller. Pure.

A role belongs to an epoch: an answer with an older one is outdated. In one epoch the master does
not change, only the in-sync set.

    answer                                  the broker
    an older epoch                          ignores it
    no master                               asks for an election
    the same epoch and master               keeps its role
    a newer epoch                           takes its new role
    itself as master, in an epoch in which  asks for another epoch: what it wrote after the last
      it was master before it started       sync may be lost, and its slaves may have it

Source: ReplicasManager.java, apache/rocketmq 5.5.0, which goes on in the same epoch.
"""

from __future__ import annotations

from enum import Enum, auto

from kourou.broker.controlling.controllers import ReplicaSet
from kourou.broker.replication.controlled_role import ControlledRole


class Decision(Enum):
    """Step that follows from an answer."""

    KEEP = auto()
    ELECT = auto()
    CHANGE_ROLE = auto()


def decide(
    broker_id: int, role: ControlledRole | None, written_epoch: int, found: ReplicaSet
) -> Decision:
    """Return what to do about an answer.

    Args:
        broker_id: the broker's id.
        role: its role; None before the first one after a start.
        written_epoch: the newest epoch that its log has named since the start.
        found: the answer.
    """
    if role is not None and found.master_epoch < role.master_epoch:
        return Decision.KEEP
    if found.master_id is None:
        return Decision.ELECT
    if role is not None and found.master_epoch == role.master_epoch:
        return Decision.KEEP
    if found.master_id == broker_id and found.master_epoch <= written_epoch:
        return Decision.ELECT
    return Decision.CHANGE_ROLE
