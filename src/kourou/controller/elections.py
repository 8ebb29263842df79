"""The leading controller: one decision at a time, stored before it is answered; scans for masters.

A decision is made from the state in memory, which is that of the store while this controller leads.
If the store cannot tell whether it stored a decision, the decision is repeated before anything else
is answered about its set: an answer from the older state could let a master acknowledge messages
for a set that is no longer its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from kourou.controller import replica_sets
from kourou.controller.broker_set import BrokerSet
from kourou.controller.config import LiveConfig
from kourou.controller.heartbeats import Heartbeats
from kourou.controller.refusals import Known, Refusals
from kourou.controller.replica_sets import Alive, Decision, Write
from kourou.controller.state_store import Member, StateStore, Stored, Term
from kourou.errors import (
    ControllerStateError,
    NotLeadingError,
    RemoteSystemError,
    WriteInDoubtError,
)
from kourou.protocol.codes import ResponseCode
from kourou.protocol.controller.headers import ElectMasterRequestHeader, ReplicasInfo
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    BrokerHeartbeatResponseHeader,
)

log = logging.getLogger(__name__)

_LATE_SCANS: Final = 3
"""A scan that is later than this many intervals shows that the process was stopped meanwhile."""

_RETRY_S: Final = 1.0

Decide = Callable[[BrokerSet | None, Alive], Decision]
"""Decides a request from the state of its set and the replicas that are alive."""


class _Pending(NamedTuple):
    """A write whose result is unknown."""

    write: Write
    version: int


class Elections:
    """Decisions about all broker sets.

    Args:
        store: the durable state.
        config: the current options.
        now_ms: a clock that advances also while the machine is suspended.
        on_elected: called with a set that has a new master, and its replicas that are alive.

    Attributes:
        elected_count: number of elections that ended with a new master.
        failure: why this controller never leads again; None while it may.
    """

    def __init__(
        self,
        store: StateStore,
        config: LiveConfig,
        now_ms: Callable[[], int],
        on_elected: Callable[[BrokerSet, Alive], None],
    ) -> None:
        self._store = store
        self._config = config
        self._now_ms = now_ms
        self._on_elected = on_elected
        self._sets: dict[str, Stored] = {}
        self._pending: dict[str, _Pending] = {}
        self._electing: set[str] = set()
        self._refusals = Refusals(lambda: config.current.broker_sets_max)
        self._removed: set[str] = set()
        self._heartbeats = Heartbeats(config.current.heartbeat_timeout_ms)
        self._lock = asyncio.Lock()
        self._is_term = False
        self._lease_ms = 0
        self._elects_from_ms = 0
        self._scanned_at_ms = 0
        self._most_alive = 0
        self.elected_count = 0
        self.failure: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this controller leads and may answer."""
        return self._is_term and self._store.leads()

    @property
    def alive_count(self) -> int:
        """The number of replicas that are alive."""
        now_ms = self._now_ms()
        return sum(len(self._heartbeats.alive(name, now_ms)) for name in self._sets)

    @property
    def refusals(self) -> list[str]:
        """Why broker sets are refused, as far as this controller knows."""
        sets = {name: stored.broker_set.refusal for name, stored in self._sets.items()}
        known = {name: refusal.reason for name, refusal in sets.items() if refusal is not None}
        return sorted({**known, **self._refusals.unstored}.values())

    async def run(self, member: Member) -> None:
        """Lead whenever this controller can; return if its state is not usable."""
        while True:
            try:
                term = await self._store.campaign(member)
            except ControllerStateError as error:
                self.failure = str(error)
                log.error("controller.refused reason=%s", error)  # noqa: TRY400 - by name
                return
            except WriteInDoubtError as error:
                log.warning("controller.not_started reason=%s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            async with self._lock:
                self._begin(term)
            log.info("controller.leads member=%s sets=%d", member.member_id, len(term.sets))
            await self._store.wait_deposed()
            self._is_term = False
            log.warning("controller.deposed member=%s", member.member_id)

    def _begin(self, term: Term) -> None:
        sets = {name: stored.broker_set for name, stored in term.sets.items()}
        self._refusals.begin(sets)
        for name, current in sets.items():
            if (known := self._sets.get(name)) is not None:
                self._check_known(known.broker_set, current)
        self._sets = dict(term.sets)
        self._pending.clear()
        self._electing.clear()
        self._heartbeats = Heartbeats(self._config.current.heartbeat_timeout_ms)
        now_ms = self._now_ms()
        self._lease_ms = term.lease_ms
        self._elects_from_ms = now_ms + term.lease_ms
        self._scanned_at_ms = now_ms
        self._most_alive = 0
        self._is_term = True

    def _check_known(self, known: BrokerSet, current: BrokerSet | None) -> None:
        """Refuse a set if its state lacks what this controller has read or written before."""
        name, epoch, set_epoch = known.broker_name, known.master_epoch, known.sync_state_set_epoch
        if current is not None and not known.applications & current.applications:
            return  # it was removed, and made again
        source = f"this controller knew epoch {epoch}"
        if current is None or current.master_epoch != epoch:
            self._refusals.check(name, Known(source, epoch), current)
            return
        source += f" with the set in sync {set_epoch}"
        one = Known(source, epoch, known.master_broker_id, set_epoch)
        self._refusals.check(name, one, current)

    # Heartbeats

    def heartbeat(self, header: BrokerHeartbeatRequestHeader, *, is_oneway: bool) -> Decision:
        """Remember a heartbeat (904); the answer confirms the master that it names.

        Raises:
            NotLeadingError: this controller does not lead, so it confirms nothing.
        """
        self._check_leads()
        invalid = ResponseCode.CONTROLLER_INVALID_REQUEST
        name, broker_id = header.broker_name, header.broker_id
        if broker_id is None or not name:
            return Decision(invalid, "Heart beat with empty brokerId")
        stored = self._sets.get(name)
        current = _set_of(stored)
        if current is not None and (wrong := _wrong_cluster(current, header.cluster_name)):
            return Decision(invalid, wrong)
        if current is not None or name not in self._removed:  # otherwise its brokers still run
            for known in _known_by(header):
                self._refusals.check(name, known, current)
        refusal = self._refusals.reason(name, current)
        if current is None or current.replica(broker_id) is None:
            if refusal is not None:
                return Decision(invalid, refusal)
            text = f"broker {broker_id} of {name} is not registered at this controller"
            return Decision(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, text)
        timeout_ms = header.heartbeat_timeout_mills
        if not is_oneway and (timeout_ms is None or timeout_ms > self._lease_ms):
            # A later leading controller could elect another master too early.
            text = (
                f"the heartbeat timeout {timeout_ms} ms is longer than leaseMsMax of the "
                f"controllers, {self._lease_ms} ms: shorten controllerHeartBeatTimeoutMills"
            )
            return Decision(invalid, text)
        self._heartbeats.receive(broker_id, header, self._now_ms())
        if refusal is not None:
            return Decision(invalid, refusal)
        if name in self._electing:
            text = f"a master of {name} is being elected"
            return Decision(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, text)
        answer = BrokerHeartbeatResponseHeader(
            current.master_broker_id,
            current.master_address,
            current.master_epoch,
            current.sync_state_set_epoch,
        )
        return Decision(remark="Heart beat success", header=answer)

    # Decisions

    async def decide(
        self,
        name: str,
        cluster: str | None,
        decide: Decide,
        *,
        set_epoch: int = 0,
        is_forced: bool = False,
    ) -> Decision:
        """Decide a request about a broker set, and store the result.

        Args:
            name: the broker name.
            cluster: the cluster that the request names; None or empty: none.
            decide: the decision.
            set_epoch: the epoch of the set in sync that the master has.
            is_forced: also if the set is refused; not if the state does not contain it.

        Raises:
            NotLeadingError: this controller does not lead; nothing was decided.
            WriteInDoubtError: the decision may or may not have been stored.
        """
        async with self._lock:
            stored = await self._settle(name)
            if set_epoch:
                known = Known(f"its master has the set in sync {set_epoch}", set_epoch=set_epoch)
                self._refusals.check(name, known, _set_of(stored))
            stored = await self._store_refusal(name, stored)
            current = _set_of(stored)
            if current is not None and (wrong := _wrong_cluster(current, cluster)):
                return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, wrong)
            refusal = self._refusals.reason(name, current)
            if refusal is not None and not (is_forced and current is not None):
                return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, refusal)
            alive = self._heartbeats.alive(name, self._now_ms())
            decision = decide(current, alive)
            if decision.write is None:
                return decision
            if refusal := self._limit_exceeded(current, decision.write):
                return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, refusal)
            await self._write(name, decision.write, stored)
            return decision

    async def elect(self, asked: ElectMasterRequestHeader) -> Decision:
        """Decide CONTROLLER_ELECT_MASTER (1002), and notify the set of a new master."""
        name = asked.broker_name

        def decide(current: BrokerSet | None, alive: Alive) -> Decision:
            return replica_sets.elect_master(
                current,
                asked,
                alive,
                is_lease_over=current is None or self._is_lease_over(current),
                has_heard_all=current is None or self._has_heard_all(current),
            )

        is_forced = bool(asked.unclean and asked.designate_elect)
        decision = await self.decide(name, asked.cluster_name, decide, is_forced=is_forced)
        after = None if decision.write is None else decision.write.broker_set
        if after is not None and after.unclean_epoch == after.master_epoch:
            assert after.master_broker_id is not None, "it has just been elected"
            # A replica that was shortened begins its heartbeats when it learns of its election.
            self._heartbeats.presume(name, after.master_broker_id, self._now_ms())
            log.error(
                "master.elected_unclean set=%s id=%d effect=%s",
                name, after.master_broker_id, "acknowledged messages that it lacks are lost",
            )  # fmt: skip
        return decision

    async def replicas_info(self, names: list[str]) -> dict[str, ReplicasInfo]:
        """Return the entries of the answer to CONTROLLER_GET_SYNC_STATE_DATA (1006)."""
        async with self._lock:
            found = {}
            for name in names:
                stored = await self._settle(name)
                if stored is not None:
                    now_ms, last = self._now_ms(), self._heartbeats.all_last(name)
                    alive = self._heartbeats.alive(name, now_ms)
                    refusal = self._refusals.reason(name, stored.broker_set)
                    found[name] = replica_sets.replicas_info(
                        stored.broker_set, alive, last, now_ms, refusal=refusal
                    )
            return found

    async def scan(self) -> None:
        """Elect a master for each set whose master is dead and that has a replica alive.

        Writes whose result is unknown are repeated, and refusals stored.
        """
        if not self.leads:
            return  # if it leads again in this term, the time between does not count
        now_ms, scanned_at_ms = self._now_ms(), self._scanned_at_ms
        self._scanned_at_ms = now_ms
        late_ms = now_ms - scanned_at_ms - self._config.current.scan_interval_ms
        if late_ms > _LATE_SCANS * self._config.current.scan_interval_ms:
            log.warning("controller.was_stopped ms=%d", late_ms)
            self._heartbeats.postpone(late_ms)
        if await self._resigns():
            return
        leaderless = [] if self._config.current.elections_paused else self._leaderless(now_ms)
        refused = [name for name in self._refusals.unstored if name in self._sets]
        for name in [*self._pending, *refused, *leaderless]:
            asked = ElectMasterRequestHeader("", name, replica_sets.BY_CONTROLLER)
            try:
                await self.elect(asked)
            except NotLeadingError:
                return
            except (RemoteSystemError, WriteInDoubtError) as error:
                log.warning("decision.failed set=%s reason=%s", name, error)

    async def _resigns(self) -> bool:
        """Resign if most replicas that sent heartbeats are silent; return whether it has.

        They may run, and be cut off from this controller alone: its masters cannot serve without
        them, and another controller may reach them. If they are down it loses nothing but a lease.
        """
        alive = self.alive_count
        self._most_alive = max(self._most_alive, alive)
        if 2 * alive >= self._most_alive or not await self._store.resign():
            return False
        log.warning("controller.resigned alive=%d of=%d", alive, self._most_alive)
        return True

    def _leaderless(self, now_ms: int) -> list[str]:
        """Return the names of the sets for which a master must be elected."""
        names = []
        for name, stored in self._sets.items():
            alive = self._heartbeats.alive(name, now_ms)
            master = stored.broker_set.master_broker_id
            if master is None or master in alive or not alive:
                continue
            if self._refusals.reason(name, stored.broker_set) is not None:
                continue
            if self._is_lease_over(stored.broker_set):
                names.append(name)
        return names

    def _is_lease_over(self, broker_set: BrokerSet) -> bool:
        """Whether the lease of the set's master has ended if the master is not alive."""
        master = broker_set.master_broker_id
        if master is None or self._now_ms() >= self._elects_from_ms:
            return True
        return self._heartbeats.last(broker_set.broker_name, master) is not None

    def _has_heard_all(self, broker_set: BrokerSet) -> bool:
        """Whether all replicas of the set have sent a heartbeat, or have had the time for it."""
        if self._now_ms() >= self._elects_from_ms:
            return True
        last = self._heartbeats.all_last(broker_set.broker_name)
        return all(one.broker_id in last for one in broker_set.replicas)

    # The state

    def _check_leads(self) -> None:
        if not self.leads:
            raise NotLeadingError(ResponseCode.CONTROLLER_NOT_LEADER, "not the leading controller")

    async def _settle(self, name: str) -> Stored | None:
        """Return the set as it is stored, after repeating a write whose result is unknown."""
        self._check_leads()
        pending = self._pending.get(name)
        if pending is not None:
            await self._attempt(name, pending)
            self._check_leads()
        return self._sets.get(name)

    async def _store_refusal(self, name: str, stored: Stored | None) -> Stored | None:
        """Store a refusal that is not stored yet; return the set as it is stored then.

        Raises:
            NotLeadingError, WriteInDoubtError, RemoteSystemError: as `_write`.
        """
        if stored is None or (refusal := self._refusals.to_store(name, stored.broker_set)) is None:
            return stored
        if refusal != stored.broker_set.refusal:
            await self._write(name, Write(replace(stored.broker_set, refusal=refusal)), stored)
        self._refusals.on_stored(name)
        return self._sets.get(name)

    async def _write(self, name: str, write: Write, stored: Stored | None) -> None:
        """Store a new state; no master of the set is confirmed while it may change.

        Raises:
            NotLeadingError, WriteInDoubtError: as `StateStore.write`.
            RemoteSystemError: another program changed the set in the store.
        """
        version = 0 if stored is None else stored.version
        self._pending[name] = _Pending(write, version)
        if _epoch(stored) != (0 if write.broker_set is None else write.broker_set.master_epoch):
            self._electing.add(name)
        if not await self._attempt(name, self._pending[name]):
            text = f"another program changed the broker set {name} in the controllers' state"
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, text)

    async def _attempt(self, name: str, pending: _Pending) -> bool:
        """Try a pending write, which stays pending unless its result is known.

        Returns:
            False if another program has changed the set.
        """
        before, wanted = self._sets.get(name), pending.write.broker_set
        result = await self._store.write(name, wanted, pending.version)
        del self._pending[name]
        self._electing.discard(name)
        after = result.stored
        # An earlier attempt, whose result was unknown, may have written it.
        is_written = result.is_written or wanted == _set_of(after)
        is_gone = after is None and name in self._removed
        if not is_written and before is not None and not is_gone:
            self._check_known(before.broker_set, _set_of(after))
        if after is None:
            self._sets.pop(name, None)
            if is_written:
                self._removed.add(name)
            self._heartbeats.keep_only(name, ())
            return is_written
        self._sets[name] = after
        self._heartbeats.keep_only(name, after.broker_set.ids)
        if after.broker_set.master_epoch != _epoch(before):
            self._announce(after.broker_set)
        return is_written

    def _announce(self, broker_set: BrokerSet) -> None:
        """Log a change of the master, and notify the replicas."""
        name, epoch = broker_set.broker_name, broker_set.master_epoch
        if broker_set.master_broker_id is None:
            log.error("master.lost set=%s epoch=%d", name, epoch)
            return
        self.elected_count += 1
        log.warning(
            "master.elected set=%s id=%d address=%s epoch=%d",
            name, broker_set.master_broker_id, broker_set.master_address, epoch,
        )  # fmt: skip
        if self._config.current.notify_broker_role_changed:
            self._on_elected(broker_set, self._heartbeats.alive(name, self._now_ms()))

    def _limit_exceeded(self, current: BrokerSet | None, write: Write) -> str | None:
        config = self._config.current
        if current is None and len(self._sets) >= config.broker_sets_max:
            return f"{len(self._sets)} broker sets are registered: the limit is brokerSetsMax"
        replicas = () if write.broker_set is None else write.broker_set.replicas
        if len(replicas) > max(config.replicas_max, len(current.replicas) if current else 0):
            return f"a broker set has at most {config.replicas_max} replicas: see replicasMax"
        return None


def _known_by(header: BrokerHeartbeatRequestHeader) -> Iterator[Known]:
    """Return what a broker knows of the elections of its set.

    Its log need not have a byte of its role's epoch, which may have been given out again since.
    """
    reports = f"broker {header.broker_id} reports epoch"
    yield Known(f"{reports} {header.epoch}", header.epoch or 0)
    epoch, master = header.kourou_role_epoch or 0, header.kourou_role_master
    source = f"{reports} {epoch}" + ("" if master is None else f" of master {master}")
    yield Known(source, epoch, master)


def _set_of(stored: Stored | None) -> BrokerSet | None:
    return None if stored is None else stored.broker_set


def _epoch(stored: Stored | None) -> int:
    return 0 if stored is None else stored.broker_set.master_epoch


def _wrong_cluster(broker_set: BrokerSet, cluster: str | None) -> str | None:
    """Return why a request for that cluster is refused; None if it is not."""
    if not cluster or cluster == broker_set.cluster_name:
        return None
    return (
        f"broker set {broker_set.broker_name} belongs to cluster {broker_set.cluster_name}, not "
        f"{cluster}"
    )
