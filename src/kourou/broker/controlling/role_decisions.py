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

A master that is cut off from too many members of its in-sync set acknowledges nothing, and the
controllers elect nobody else, because they hear it. It asks them which replicas they hear, too, and
lets one of these be elected:

    who     a member of the in-sync set: it has all acknowledged messages. First of those that the
            master does not reach, which are on the other side of a partition
    when    enough replicas are heard to acknowledge messages without the master
    heard   its last heartbeat is recent: a member that has died since the master lost it is not

Source: ReplicasManager.java, apache/rocketmq 5.5.0, which goes on in the same epoch, and hands
nothing over. Its controllers do not tell when they have heard a replica: under them a master stays.
"""

from __future__ import annotations

from enum import Enum, auto

from kourou.broker.controlling.controllers import ReplicaSet
from kourou.broker.replication.controlled_role import ControlledRole
from kourou.protocol.controller.headers import ReplicaIdentity, ReplicasInfo


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


def loss_by_restore(broker_id: int, role_epoch: int, found: ReplicaSet) -> str:
    """Return why the store may lack what was acknowledged; empty if the answer does not show it.

    A member of the in-sync set beside others had a role in the epoch of its master: a store that
    names only older ones was restored.

    Args:
        broker_id: the broker's id.
        role_epoch: the newest epoch in which the store notes a role; 0 if unknown.
        found: the answer.
    """
    members = found.in_sync.members
    # The end of a master begins an epoch, too, and does not change the set.
    epoch = found.master_epoch - (found.master_id is None)
    if broker_id not in members or len(members) < 2 or not 0 < role_epoch < epoch:
        return ""
    return (
        f"the replica was in sync in epoch {epoch}, and its store knows only {role_epoch}: it was "
        "restored"
    )


def is_complete_again(
    broker_id: int, written_epoch: int, found: ReplicaSet, *, has_all: bool
) -> bool:
    """Return whether a replica that had lost something lacks nothing that others depend on.

    Another master goes on without it, or it has all that this confirms. Or it was elected although
    it may lack something, by an unclean election in an epoch in which it has not served.

    Args:
        broker_id: the broker's id.
        written_epoch: the newest epoch that its log has named since the start.
        found: the answer.
        has_all: whether it has what the master of the answer confirms.
    """
    if found.master_id is None:
        return False
    if found.master_id == broker_id:
        is_new = found.master_epoch > written_epoch
        return is_new and found.unclean_epoch == found.master_epoch
    return has_all or broker_id not in found.in_sync.members


def choose_master(
    found: ReplicasInfo, own_id: int, silent: frozenset[int], needed: int, fresh_ms: int
) -> int | None:
    """Return the id of the replica to elect instead of a master; None if it should stay.

    Args:
        found: the answer of the controller.
        own_id: of the master.
        silent: ids of the members that the master does not reach.
        needed: number of replicas that acknowledge messages.
        fresh_ms: greatest age of the last heartbeat of a replica that is heard.
    """

    def is_heard(one: ReplicaIdentity) -> bool:
        is_fresh = one.silent_ms is not None and one.silent_ms <= fresh_ms
        return bool(one.alive) and is_fresh and one.broker_id != own_id

    members = [one for one in found.in_sync_replicas if is_heard(one)]
    count = len(members) + sum(map(is_heard, found.not_in_sync_replicas))
    if found.master_broker_id != own_id or count < needed or not members:
        return None
    ranks = [
        (one.broker_id in silent, one.epoch or -1, one.max_offset or -1, -(one.broker_id or 0))
        for one in members
    ]
    return members[ranks.index(max(ranks))].broker_id
