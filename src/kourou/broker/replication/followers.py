"""The slaves of a master by broker id: what each has reported, and when it last had the whole log.

Pure. A slave under load is always some bytes behind, so it is measured by marks: the end of the log
at one moment, which a later report reaches or not. A mark is set when bytes are sent, and replaced
when it is reached.

    is close to the end    reached a recent mark, and the start of the current epoch
    is late                has not reached a mark for `haMaxTimeSlaveNotCatchup`
    is silent              is late, and has reported nothing for as long

Copies are counted by broker id, so that an old connection of a slave never counts beside its new
one. A slave that connects again counts only from its first report on: it may have lost bytes.

Source: AutoSwitchHAService.maybeExpandInSyncStateSet and maybeShrinkSyncStateSet,
apache/rocketmq 5.5.0. There each packet sets the mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kourou.broker.replication.slave_progress import UNKNOWN

_JOIN_SHARE: Final = 0.25
"""A slave may join if it was behind for less than this part of the time after which it leaves."""


class _Follower:
    """One slave.

    Attributes:
        position: up to which it has reported the log; `UNKNOWN` before its first report.
        caught_up_at_s: when it last had the whole log.
        reported_at_s: when it last reported anything.
        mark: an end of the log that it has not reached yet, and the time of that.
    """

    __slots__ = (
        "caught_up_at_s",
        "is_connected",
        "is_learner",
        "mark",
        "position",
        "reported_at_s",
    )

    def __init__(self, caught_up_at_s: float) -> None:
        self.position = UNKNOWN
        self.caught_up_at_s = caught_up_at_s
        self.reported_at_s = float("-inf")
        self.mark: tuple[int, float] | None = None
        self.is_learner = False
        self.is_connected = False


class Followers:
    """The slaves of one master."""

    def __init__(self, members: Iterable[int], now_s: float, *, late_s: float) -> None:
        """Begin with the other members of the in-sync set, which are not connected yet.

        Args:
            members: their broker ids.
            now_s: loop time; each member has `late_s` from then on to connect.
            late_s: how long after it last had the whole log a member leaves the set.
        """
        self._late_s = late_s
        self._by_id = {broker_id: _Follower(now_s) for broker_id in members}

    def on_connected(self, broker_id: int, *, is_learner: bool) -> None:
        """Note a new connection of a slave, which takes the place of an earlier one."""
        follower = self._by_id.setdefault(broker_id, _Follower(float("-inf")))
        follower.position = UNKNOWN
        follower.mark = None
        follower.is_learner = is_learner
        follower.is_connected = True

    def on_closed(self, broker_id: int) -> None:
        """Note the end of the slave's connection: what it has reported still counts."""
        follower = self._by_id[broker_id]
        follower.is_connected = False
        follower.mark = None

    def on_sent(self, broker_id: int, log_end: int, now_s: float) -> None:
        """Note that bytes were sent to the slave, while the log ended at `log_end`."""
        follower = self._by_id[broker_id]
        if follower.mark is None:
            follower.mark = log_end, now_s

    def on_reported(self, broker_id: int, position: int, log_end: int, now_s: float) -> None:
        """Note that a slave has the log up to `position`."""
        follower = self._by_id[broker_id]
        follower.position, follower.reported_at_s = position, now_s
        if position >= log_end:
            follower.caught_up_at_s, follower.mark = now_s, None
        elif follower.mark is not None and position >= follower.mark[0]:
            follower.caught_up_at_s, follower.mark = follower.mark[1], (log_end, now_s)

    def position(self, broker_id: int) -> int:
        """Return the position up to which a slave has reported the log; else `UNKNOWN`."""
        follower = self._by_id.get(broker_id)
        return UNKNOWN if follower is None else follower.position

    def may_join(self, broker_id: int, least_position: int, log_end: int, now_s: float) -> bool:
        """Return whether a slave is close enough to the log's end to become a member.

        Args:
            broker_id: of the slave.
            least_position: what it must have.
            log_end: the end of the log.
            now_s: loop time.
        """
        follower = self._by_id[broker_id]
        if not follower.is_connected or follower.is_learner:
            return False
        behind_s = self._behind_s(follower, log_end, now_s)
        return follower.position >= least_position and behind_s <= _JOIN_SHARE * self._late_s

    def joining(self, least_position: int, log_end: int, now_s: float) -> frozenset[int]:
        """Return the ids of all slaves that may join."""
        return frozenset(
            broker_id
            for broker_id in self._by_id
            if self.may_join(broker_id, least_position, log_end, now_s)
        )

    def late(self, members: Iterable[int], log_end: int, now_s: float) -> frozenset[int]:
        """Return those of the members that must leave."""
        return frozenset(
            broker_id
            for broker_id in members
            if broker_id not in self._by_id
            or self._behind_s(self._by_id[broker_id], log_end, now_s) > self._late_s
        )

    def silent(self, late: Iterable[int], now_s: float) -> frozenset[int]:
        """Return those late members that do not only lag, but report nothing."""
        return frozenset(
            broker_id
            for broker_id in late
            if broker_id not in self._by_id
            or now_s - self._by_id[broker_id].reported_at_s > self._late_s
        )

    def forget(self, members: Iterable[int]) -> None:
        """Forget the slaves that are neither connected nor among the members."""
        kept = frozenset(members)
        self._by_id = {
            broker_id: follower
            for broker_id, follower in self._by_id.items()
            if follower.is_connected or broker_id in kept
        }

    def _behind_s(self, follower: _Follower, log_end: int, now_s: float) -> float:
        """Return for how long a slave has lacked a part of the log."""
        if follower.is_connected and follower.position >= log_end:
            follower.caught_up_at_s = now_s
        return now_s - follower.caught_up_at_s
