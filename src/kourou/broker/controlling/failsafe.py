"""Failsafe: while no controller answers, the members of its in-sync set confirm a master.

The master asks every member of every set that the controllers may have stored: the last confirmed
one, and all proposals in doubt. Only if all of them confirm it, its lease begins again, at the time
before the questions left.

    a member confirms     as a slave in the epoch of the master; it knows of no newer epoch, and no
                          controller has answered it for half a lease
    a member promises     to become master, in whatever epoch, only after its heartbeat timeout: the
                          lease of the master has ended by then. It may follow another master, which
                          has kept its own promise
    a member restarts     with the promise, which it has stored before it confirms
    while members confirm the master proposes no set, since a new member has promised nothing

So whichever member the controllers elect, it becomes master after the lease. A master that is alone
in its set asks nobody: no other replica can be elected. An unclean election elects a replica that
was not asked: the operator stops the old master before.

Java's brokers ignore the question, which is no confirmation.

Source: Patroni's failsafe mode has the same purpose.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from kourou.broker.controlled_broker import ControlledBroker
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.controlling.controllers import Controllers, Identity
from kourou.broker.replication.controlled_role import ControlledRole, MasterClaim, member_name
from kourou.decimals import decimal_or
from kourou.disk import Disk, replace
from kourou.errors import ProtocolError, RemoteError, TransportError

log = logging.getLogger(__name__)

PROMISE_FILE: Final = "kourou-promise"
"""Holds the duration of a promise, in ms; it exists while the broker may have promised."""
_ASK_TIMEOUTS: Final = 4
"""A member is asked for this part of a lease at most."""
_PROMISE_MS_MAX: Final = 3_600_000


class Environment(NamedTuple):
    """Disk and clock of a replica.

    Attributes:
        disk: of its store.
        offload: calls a function that waits for the disk.
        now_s: returns the time of the lease's clock.
    """

    disk: Disk
    offload: Callable[..., Awaitable[Any]]
    now_s: Callable[[], float]


class Failsafe:
    """Failsafe of one replica, in one role after the other.

    Args:
        config: the options.
        controllers: reach the members, too.
        environment: disk and clock.
    """

    def __init__(
        self, config: ControllerModeConfig, controllers: Controllers, environment: Environment
    ) -> None:
        self._is_on = config.controller_failsafe
        self._lease_s = config.controller_lease_ms / 1000
        self._promise_ms = config.controller_heartbeat_timeout_ms
        self._controllers = controllers
        self._disk, self._offload, self._now_s = environment
        self._broker: ControlledBroker | None = None
        self._role: ControlledRole | None = None
        self._answered_at_s = -math.inf
        self._newest_epoch = 0
        self._promised_until_s = -math.inf
        self._is_stored = False  # the promise
        self._storing = asyncio.Lock()
        self._addresses: dict[int, str] = {}
        self._refusing: list[int] = []

    def start(self) -> None:
        """Keep the promise of an earlier process.

        Raises:
            OSError: it cannot be read.
        """
        self._is_stored = self._disk.exists(PROMISE_FILE)
        if self._is_stored:
            text = self._disk.read(PROMISE_FILE, 0, 20).strip()
            stored_ms = decimal_or(text, 0)
            promise_ms = stored_ms if 0 < stored_ms <= _PROMISE_MS_MAX else self._promise_ms
            self._promise(promise_ms)

    def begin(self, broker: ControlledBroker, role: ControlledRole | None) -> None:
        """Take a broker that has started; None: it knows no master."""
        self._broker, self._role = broker, role

    def end(self) -> None:
        """Let the broker go."""
        self._broker = self._role = None

    # Controllers

    def on_answered(self) -> None:
        """Note that a leading controller has answered."""
        self._answered_at_s = self._now_s()

    def learn_epoch(self, epoch: int) -> None:
        """Note the epoch of an answer."""
        self._newest_epoch = max(self._newest_epoch, epoch)

    async def update(self, me: Identity, *, is_master: bool) -> None:
        """Do what needs the controllers, which have just answered.

        Raises:
            RemoteError, TransportError: as `Controllers.states`.
            OSError: the promise cannot be removed.
        """
        async with self._storing:
            if self._is_stored and self.may_lead:
                await self._offload(self._disk.unlink, PROMISE_FILE)
                self._is_stored = False
        if self._is_on and is_master:
            found = await self._controllers.states(me.broker_name)
            for one in (*found.in_sync_replicas, *found.not_in_sync_replicas):
                if one.broker_id is not None and one.broker_address:
                    self._addresses[one.broker_id] = one.broker_address

    def _is_out_of_reach(self, epoch: int) -> bool:
        """Return whether no controller answers, and none has named a newer epoch."""
        silent_s = self._now_s() - self._answered_at_s
        return self._is_on and silent_s > self._lease_s / 2 and self._newest_epoch <= epoch

    # A master

    def is_needed(self, epoch: int, left_s: float) -> bool:
        """Return whether the members should be asked to confirm a master.

        Args:
            epoch: of the master.
            left_s: what is left of its lease.
        """
        return left_s <= self._lease_s / 2 and self._is_out_of_reach(epoch)

    async def is_confirmed(self, me: Identity, epoch: int, members: frozenset[int]) -> bool:
        """Return whether all members confirm a master.

        Args:
            me: the master.
            epoch: its epoch.
            members: ids of the members, its own included.
        """
        others = sorted(members - {me.broker_id})
        answers = await asyncio.gather(*(self._ask(me, epoch, one) for one in others))
        refusing = [one for one, answer in zip(others, answers, strict=True) if not answer]
        if refusing and refusing != self._refusing:
            log.warning("failsafe.not_confirmed epoch=%d by=%s", epoch, refusing)
        self._refusing = refusing
        return not refusing

    async def _ask(self, me: Identity, epoch: int, broker_id: int) -> bool:
        address = self._addresses.get(broker_id)
        if address is None:
            return False
        claim = MasterClaim(member_name(me.broker_name, broker_id), epoch, self._promise_ms)
        try:
            return await self._controllers.ask_member(address, claim, self._lease_s / _ASK_TIMEOUTS)
        except (TransportError, RemoteError, ProtocolError):
            return False

    # A member

    @property
    def may_lead(self) -> bool:
        """Whether this broker may become master."""
        return self._now_s() >= self._promised_until_s

    async def confirm(self, me: Identity, claim: MasterClaim) -> bool:
        """Promise to become no master, and return whether a master is confirmed.

        Raises:
            OSError: the promise cannot be stored.
        """
        if not self._may_confirm(me, claim):
            return False
        self._promise(claim.promise_ms)
        async with self._storing:
            if not self._is_stored:
                text = str(self._promise_ms).encode()
                await self._offload(self._store, text)
                self._is_stored = True
        return self._may_confirm(me, claim)

    def _may_confirm(self, me: Identity, claim: MasterClaim) -> bool:
        role, broker = self._role, self._broker
        if role is None or broker is None or role.is_master or role.master_epoch != claim.epoch:
            return False
        replica = broker.components.replica
        is_newest = replica is not None and replica.epochs.newest_seen <= claim.epoch
        return (
            is_newest
            and claim.member == member_name(me.broker_name, me.broker_id)
            and 0 < claim.promise_ms <= self._promise_ms
            and self._is_out_of_reach(claim.epoch)
        )

    def _promise(self, duration_ms: int) -> None:
        until_s = self._now_s() + duration_ms / 1000
        self._promised_until_s = max(self._promised_until_s, until_s)

    def _store(self, text: bytes) -> None:
        replace(self._disk, PROMISE_FILE, text, backup=None)
