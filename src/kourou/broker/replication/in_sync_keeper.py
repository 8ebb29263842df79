"""Keeps the in-sync set of a master, and decides what counts as copied and as confirmed.

    confirmed   the position that all members of the union have: consumers see records up to it
    copied      the same for answers to sends; `UNKNOWN` while this broker must not acknowledge
    refusal     the answer to sends that cannot be acknowledged: fenced, deposed, too few members

The union is that of `in_sync_set.py`. Slaves that keep up are proposed to the controller, and those
that do not are proposed for removal; until the controller has confirmed it, they count.

A slave must have everything confirmed before it is proposed, since it may be elected at once. Under
load it never has, if others confirm what it is about to receive. So a slave that is close counts as
soon as that, and is proposed when it has reached what was confirmed until then.

A set with fewer members than `minInSyncReplicas` is not proposed: nothing could be acknowledged
with it, and a member that it lacks could not be elected, although it has all acknowledged messages.
Sends are refused while too few members keep up. If these do not even report, the master offers its
role to them: it may be the one that is cut off.

Source: AutoSwitchHAService.java, ReplicasManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kourou.broker.replication.controlled_role import ControlledRole, ControllerPort, InSyncSet
from kourou.broker.replication.followers import Followers
from kourou.broker.replication.in_sync_set import InSyncDecisions
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.replication.slave_progress import UNKNOWN
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import RemoteError, TransportError
from kourou.model.epochs import POSITION_MAX, EpochList
from kourou.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

_FORMING_S: Final = 3.0
"""Seconds in which the others join a new master. Until then a refusal is that of a broker which
changes its role, so that clients wait for it."""
_REFUSED: Final = frozenset(
    {
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
    }
)
"""Codes that show that the controller has not stored a proposal. Others may answer a request that
was repeated on the way, or whose decision failed half-way."""


class InSyncKeeper:
    """The in-sync set of one master. Created inside a running loop; started and stopped once.

    Attributes:
        broker_id: of the master.
        epochs: of its log.
        followers: the slaves.
        is_failsafe: whether members confirm the master, because no controller answers: it then
            proposes no set.
    """

    def __init__(
        self,
        role: ControlledRole,
        port: ControllerPort,
        epochs: EpochList,
        config: ReplicationConfig,
        commit: GroupCommit,
    ) -> None:
        """Begin with the set of the role.

        Args:
            role: the role, which is that of the master.
            port: asks the controller for other sets.
            epochs: of the log; the last one is the master's own.
            config: the options.
            commit: dispatches and acknowledges by what is decided here.
        """
        self.broker_id = role.broker_id
        self.epochs = epochs
        self._port = port
        self._config = config
        self._commit = commit
        self._loop = asyncio.get_running_loop()
        self._decisions = InSyncDecisions(role.broker_id, role.in_sync)
        self.followers = Followers(
            role.in_sync.members - {role.broker_id},
            self._loop.time(),
            late_s=config.ha_max_time_slave_not_catchup_ms / 1000,
        )
        self._epoch_start = list(epochs)[-1].start
        self._confirmed = 0
        self._joining: frozenset[int] = frozenset()  # they count, and are not proposed yet
        self._late: frozenset[int] = frozenset()  # members that do not keep up
        self._was_cut_off = False  # at the last check
        # The set of a new master is itself alone; the others join within tenths of a second.
        self._is_forming = True
        self._forms_until_s = self._loop.time() + _FORMING_S
        self._fence_reason = ""
        self.is_failsafe = False
        self._propose_from_s = 0.0  # not before, after a proposal that failed
        self._failure = ""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed()

    @property
    def in_sync(self) -> InSyncSet:
        """The last confirmed set."""
        return self._decisions.confirmed

    def start(self) -> None:
        """Check the members periodically."""
        self._check_later()

    def stop(self) -> None:
        """Propose no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def adopt(self, found: InSyncSet, asked_at_s: float | None = None) -> None:
        """Take a set that the controller has stored; see `InSyncDecisions.adopt`."""
        before = self.in_sync
        if self._decisions.adopt(found, asked_at_s):
            self._changed()
        if self.in_sync != before:
            self._log_set()

    @property
    def union(self) -> frozenset[int]:
        """The members of all sets that the controller may have stored."""
        return self._decisions.union

    def fence(self, reason: str) -> None:
        """Acknowledge nothing, and refuse all puts with `reason`, until `unfence`."""
        self._fence_reason = reason
        self._changed()

    def unfence(self) -> None:
        """Undo `fence`."""
        self._fence_reason = ""
        self._changed()

    @property
    def fence_reason(self) -> str:
        """Why changes are refused; empty if they are not."""
        return self._fence_reason

    # What counts

    @property
    def confirm_position(self) -> int:
        """The position up to which all members have the log."""
        return self.confirmed_position(self._commit.stored_position)

    def confirmed_position(self, own_end: int) -> int:
        """Return the position up to which records may be dispatched; it never decreases.

        Args:
            own_end: the end of what the master itself has stored.
        """
        if self._decisions.is_member:
            for broker_id in self._others:
                own_end = min(own_end, self.followers.position(broker_id))
            self._confirmed = max(self._confirmed, own_end)
        return self._confirmed

    def copied_position(self) -> int:
        """Return the position up to which sends may be acknowledged, as far as copies decide."""
        decisions, config = self._decisions, self._config
        if (
            self._fence_reason
            or not decisions.is_member
            or decisions.size_min < config.min_in_sync_replicas
        ):
            return UNKNOWN
        others = self._others
        if config.all_ack_in_sync_state_set:
            return min(map(self.followers.position, others), default=POSITION_MAX)
        needed = config.in_sync_replicas - 1
        if not needed:
            return POSITION_MAX
        certain = decisions.certain - {self.broker_id}
        positions = sorted(map(self.followers.position, certain), reverse=True)
        return positions[needed - 1] if len(positions) >= needed else UNKNOWN

    def lagging(self, position: int) -> str:
        """Return a text that names the members without the log up to a position."""
        behind = sorted(one for one in self._others if self.followers.position(one) < position)
        return f"; these brokers of the in-sync set lack it: {behind}" if behind else ""

    def _refusal(self) -> PutResult | None:
        if self._fence_reason:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self._fence_reason)
        if not self._decisions.is_member:
            reason = f"the broker is not the master any more: the in-sync set is {self.in_sync}"
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        size, needed = self._decisions.size_min, self._config.min_in_sync_replicas
        size = min(size, len(self.in_sync.members - self._late))
        if size < needed:
            reason = f"{size} replicas are in sync, and minInSyncReplicas is {needed}"
            if self._is_forming:
                reason = f"the broker has just become master: {reason}"
                return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
            return PutResult(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, reason=reason)
        self._is_forming = False
        return None

    def _changed(self) -> None:
        """Apply a change of the set or of the fence."""
        decisions = self._decisions
        self._others = tuple((decisions.union | self._joining) - {self.broker_id})
        # With fewer acks than members, one of the others may be elected.
        waits_for_all = self._config.all_ack_in_sync_state_set and decisions.size_min > 1
        self._commit.copies = 1 + len(self._others) if waits_for_all else 1
        self._commit.refuse_puts(self._refusal())
        self._commit.on_copied()

    # Called by the service

    def on_connected(self, broker_id: int, *, is_learner: bool) -> None:
        """Note a new connection of a slave."""
        self.followers.on_connected(broker_id, is_learner=is_learner)

    def on_sent(self, broker_id: int) -> None:
        """Note that bytes were sent to a slave."""
        self.followers.on_sent(broker_id, self._commit.stored_position, self._loop.time())

    def on_reported(self, broker_id: int, position: int) -> None:
        """Note that a slave has the log up to `position`."""
        self.followers.on_reported(
            broker_id, position, self._commit.stored_position, self._loop.time()
        )
        if broker_id in self._late:
            self._find_late()
        if broker_id not in self.in_sync.members and self._is_close(broker_id):
            self._propose_changes()

    def on_closed(self, broker_id: int) -> None:
        """Note the end of a slave's connection."""
        self.followers.on_closed(broker_id)
        self.followers.forget(self._decisions.union)

    # Proposals

    def _is_close(self, broker_id: int) -> bool:
        end, now_s = self._commit.stored_position, self._loop.time()
        return self.followers.may_join(broker_id, self._epoch_start, end, now_s)

    def _check_later(self) -> None:
        pause_s = self._config.check_sync_state_set_period_ms / 1000
        self._timer = self._loop.call_later(pause_s, self._check)

    def _check(self) -> None:
        self._find_late()
        self._propose_changes()
        self._offer_role()
        if self._is_forming and self._loop.time() >= self._forms_until_s:
            self._is_forming = False
            self._changed()
        self._check_later()

    def _find_late(self) -> None:
        """Find the members that do not keep up."""
        end, now_s, others = self._commit.stored_position, self._loop.time(), self.in_sync.members
        late = self.followers.late(others - {self.broker_id}, end, now_s)
        if self._commit.is_read_only:  # it sends nothing, so that all seem late
            late = frozenset()
        if late != self._late:
            self._late = late
            self._changed()

    def _offer_role(self) -> None:
        """Offer the role of the master if too few members report, at two checks in a row.

        After a pause of this process, the first check may come before their reports.
        """
        silent = self.followers.silent(self._late, self._loop.time())
        left, needed = len(self.in_sync.members - silent), self._config.min_in_sync_replicas
        is_cut_off = bool(silent) and left < needed
        if is_cut_off and self._was_cut_off and not self._fence_reason:
            self._port.offer_role(silent, needed)
        self._was_cut_off = is_cut_off

    def _propose_changes(self) -> None:
        """Propose the set as it should be, unless it is, or another proposal is under way."""
        decisions = self._decisions
        if decisions.is_proposing or self._task is not None or not decisions.is_member:
            return
        end, now_s, members = self._commit.stored_position, self._loop.time(), self.in_sync.members
        if now_s < self._propose_from_s or self._commit.is_read_only:
            return
        if self.is_failsafe:  # a new member has not promised to wait
            return
        close = self.followers.joining(self._epoch_start, end, now_s) - members
        confirmed = self.confirm_position
        ready = frozenset(one for one in close if self.followers.position(one) >= confirmed)
        if close - ready != self._joining:
            self._joining = close - ready
            self._changed()
        wanted = (members - self._late) | ready
        if len(wanted) < self._config.min_in_sync_replicas:
            wanted = members | ready
        if wanted != members:
            decisions.propose(wanted)
            self._changed()
            self._task = self._loop.create_task(self._propose(wanted), name="alter in-sync set")

    async def _propose(self, wanted: frozenset[int]) -> None:
        decisions = self._decisions
        try:
            found = await self._port.propose(wanted)
        except (RemoteError, TransportError) as error:
            if isinstance(error, RemoteError) and error.code in _REFUSED:
                decisions.on_refused()
            self._on_failure(wanted, str(error))
        else:
            decisions.on_answer(found, self._loop.time())
            self._failure = ""
            self._log_set()
        finally:
            self._task = None
            decisions.on_unknown(self._loop.time())  # no effect after an answer
            self.followers.forget(decisions.union)
            self._changed()

    def _on_failure(self, wanted: frozenset[int], reason: str) -> None:
        pause_s = self._config.check_sync_state_set_period_ms / 1000
        self._propose_from_s = self._loop.time() + pause_s
        if reason != self._failure:  # a controller that is down is logged once
            self._failure = reason
            log.warning("in_sync_set.not_changed members=%s reason=%s", sorted(wanted), reason)

    def _log_set(self) -> None:
        members, epoch = self.in_sync
        log.info("in_sync_set.changed members=%s epoch=%d", sorted(members), epoch)
