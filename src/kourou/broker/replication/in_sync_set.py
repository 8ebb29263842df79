"""The in-sync set of a master: the last confirmed one, and the proposals that may replace it.

Pure. The controller stores one set with a number, its epoch, and accepts a proposal only if that is
still the epoch that the proposal was made from. A master never knows more than answers tell it. So
everything that must hold for the members of the set, such as an acknowledged message, must hold for
the union of all sets that the controller may have stored by now:

    event                                    proposals that remain in doubt
    a proposal is sent                       it and the earlier ones: one at a time
    its answer has the new set               none: the epoch has changed
    it is refused                            the earlier ones
    no answer, or one that does not tell     it and the earlier ones
    a set with a greater epoch is learned    none that was made from a smaller epoch
    the same epoch, asked for after the      none that had ended by then
    proposal ended
    a set with a smaller epoch is learned    all

In RocketMQ a proposal replaces an earlier one that is in doubt. If {1} becomes {1, 2} with a lost
answer, and {1, 3} is proposed then, it acknowledges messages that 2 lacks, although 2 may be
elected.

Source: AutoSwitchHAService.java, ReplicasInfoManager.alterSyncStateSet, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import NamedTuple

from kourou.broker.replication.controlled_role import InSyncSet


class _Proposal(NamedTuple):
    """A set that the controller may have stored.

    Attributes:
        members: the proposed broker ids.
        epoch: of the set that it would replace.
        ended_at_s: when its answer arrived or was given up; None while it is awaited.
    """

    members: frozenset[int]
    epoch: int
    ended_at_s: float | None = None


class InSyncDecisions:
    """The confirmed in-sync set of a master, and its proposals in doubt.

    Attributes:
        confirmed: the newest set that the controller is known to have stored.
        union: all members of that set and of every proposal in doubt.
        certain: the members of all of these sets.
        size_min: the size of the smallest of these sets.
        is_member: whether this broker is in all of them; if not, it is not the master any more.
    """

    __slots__ = (
        "_doubtful",
        "_own_id",
        "certain",
        "confirmed",
        "is_member",
        "size_min",
        "union",
    )

    def __init__(self, own_id: int, confirmed: InSyncSet) -> None:
        """Begin with a confirmed set, and no proposals."""
        self._own_id = own_id
        self.confirmed = confirmed
        self._set([])

    @property
    def is_proposing(self) -> bool:
        """Whether a proposal is under way."""
        return any(one.ended_at_s is None for one in self._doubtful)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the controller may have stored another set than the confirmed one."""
        return bool(self._doubtful)

    def propose(self, members: frozenset[int]) -> None:
        """Note that a proposal is about to be sent; call it before anything leaves.

        Raises:
            ValueError: another one is under way, or this broker is not a member.
        """
        if self.is_proposing:
            raise ValueError("one proposal of an in-sync set is under way")
        if self._own_id not in members:
            raise ValueError(f"the in-sync set {sorted(members)} lacks its master {self._own_id}")
        self._set([*self._doubtful, _Proposal(members, self.confirmed.epoch)])

    def on_refused(self) -> None:
        """Note that the controller has not stored the proposal under way, and never will."""
        self._set([one for one in self._doubtful if one.ended_at_s is not None])

    def on_unknown(self, now_s: float) -> None:
        """Note that the fate of the proposal under way is unknown."""
        self._set(
            [
                one._replace(ended_at_s=now_s) if one.ended_at_s is None else one
                for one in self._doubtful
            ]
        )

    def on_answer(self, found: InSyncSet, now_s: float) -> None:
        """Take the set with which the controller has answered the proposal under way."""
        if found.epoch > self.confirmed.epoch:
            self.on_refused()  # it is over: `found` is what became of it
            self.adopt(found)
        else:  # an older or an impossible answer tells nothing
            self.on_unknown(now_s)

    def adopt(self, found: InSyncSet, asked_at_s: float | None = None) -> bool:
        """Take a set that the controller has stored; return whether anything changed.

        Args:
            found: the set.
            asked_at_s: when the answer with it was asked for; None if that is not known.
        """
        if found.epoch > self.confirmed.epoch:
            self.confirmed = found
            self._set([one for one in self._doubtful if one.epoch >= found.epoch])
            return True
        if found != self.confirmed or asked_at_s is None:
            return False
        left = [one for one in self._doubtful if not _ended_by(one, asked_at_s)]
        is_changed = len(left) < len(self._doubtful)
        self._set(left)
        return is_changed

    def _set(self, doubtful: list[_Proposal]) -> None:
        self._doubtful = doubtful
        possible = [self.confirmed.members, *(one.members for one in doubtful)]
        self.union: frozenset[int] = frozenset().union(*possible)
        self.certain = self.confirmed.members.intersection(*possible)
        self.size_min = min(map(len, possible))
        self.is_member = self._own_id in self.certain


def _ended_by(proposal: _Proposal, time_s: float) -> bool:
    return proposal.ended_at_s is not None and proposal.ended_at_s <= time_s
