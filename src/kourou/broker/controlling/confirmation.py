"""Confirmation of a master by controllers: its heartbeats, its lease, and the fence without it.

A master that reaches too few members of its in-sync set gives its role up, if another replica can
serve (`role_decisions.py`). It is fenced before it asks for the election, until the answer to a
heartbeat shows that it is still the master.

A change of the role stops the broker for a while. Heartbeats go on meanwhile, for some time-outs of
the controllers: a replica that was elected must not be replaced while it starts as master.

Without a leading controller, the members of its in-sync set may confirm a master (`failsafe.py`).

A master sends no heartbeats while it is not confirmed and the controller does not answer: if only
one direction of the network is cut, the controller then elects another one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kourou.broker.controlled_broker import ControlledBroker
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.controlling.controllers import Controllers, Identity
from kourou.broker.controlling.failsafe import Environment, Failsafe
from kourou.broker.controlling.lease import Lease
from kourou.broker.controlling.role_decisions import choose_master
from kourou.broker.replication.controlled_role import ControlledRole, LogState
from kourou.disk import Disk
from kourou.protocol.topic_table import BrokerHeartbeatRequestHeader

log = logging.getLogger(__name__)

_CHANGE_TIMEOUTS: Final = 3
"""For so many time-outs of the controllers heartbeats go on during a change of the role."""
_RECENT_HEARTBEATS: Final = 2
"""A replica is heard whose last heartbeat is not older than this many of their intervals."""


class Confirmation:
    """The confirmation of one broker, in one role after the other.

    Args:
        config: the options.
        controllers: confirm it.
        address: where the broker serves clients.
        disk: holds the store.
        offload: calls a function that waits for the disk.
        ask_role: called when the controllers know of another master.

    Attributes:
        is_answered: whether the last question to the controllers was answered.
        failsafe: confirms a master without controllers.
    """

    def __init__(
        self,
        config: ControllerModeConfig,
        controllers: Controllers,
        address: str,
        disk: Disk,
        offload: Callable[..., Awaitable[Any]],
        ask_role: Callable[[], None],
    ) -> None:
        self._config = config
        self._controllers = controllers
        self._address = address
        self._ask_role = ask_role
        self._lease = Lease(config.controller_lease_ms, self._on_lease_ended)
        self._broker: ControlledBroker | None = None
        self._role: ControlledRole | None = None
        self._role_epoch = 0  # the newest one of a role, also before the last start
        self._left: tuple[LogState, float] | None = None  # of the broker that was stopped, and when
        self._beaten_at_s = -math.inf  # when the last heartbeat left that was answered
        self._members_asked_at_s = -math.inf  # when all had to confirm the master
        self._is_failsafe = False
        self.is_answered = True
        self.failsafe = Failsafe(config, controllers, Environment(disk, offload, self.now_s))
        controllers.on_answered = self.failsafe.on_answered

    def now_s(self) -> float:
        """Return the time of the lease's clock."""
        return self._lease.now_s()

    def begin(self, broker: ControlledBroker, role: ControlledRole | None) -> None:
        """Take a broker that has started; None: it knows no master."""
        self._broker, self._role = broker, role
        self._role_epoch = broker.role_epoch
        self.failsafe.begin(broker, role)

    def end(self, *, keeps_log: bool) -> None:
        """Let the broker go, which is about to stop; another one follows, perhaps with its log."""
        self._left = None
        if self._broker is not None and keeps_log:
            self._left = self._broker.log_state(), self._lease.now_s()
        self._set_failsafe(is_active=False)
        self._broker = self._role = None
        self.failsafe.end()
        self._lease.give_up()

    def confirm_elected(self) -> None:
        """Begin the lease of a new master with the last heartbeat that was answered.

        Since that one the controllers count the time after which they elect another one.
        """
        self._lease.renew(self._beaten_at_s)
        if not self._lease.is_held:
            self._on_lease_ended()

    async def beat(self, me: Identity) -> bool:
        """Send a heartbeat, and return whether; its answer renews the lease of a master.

        Raises:
            RemoteError, TransportError: as `Controllers.heartbeat`.
        """
        state = self._log_state()
        if state is None or not self.is_answered:
            return False
        asked_at_s, epoch = self._lease.now_s(), self._epoch
        header = BrokerHeartbeatRequestHeader(
            me.cluster,
            self._address,
            me.broker_name,
            me.broker_id,
            *state,
            self._config.controller_heartbeat_timeout_ms,
            self._config.broker_election_priority,
            *self._known_master(),
        )
        known = await self._controllers.heartbeat(header)
        self.failsafe.learn_epoch(known.master_epoch or 0)
        self._beaten_at_s = asked_at_s
        if self._broker is None:
            return True
        if known.master_epoch is not None and known.master_epoch != epoch:
            self._ask_role()  # there is another master, which confirms nothing for this one
        elif self._is_master and self._epoch == epoch:
            self._lease.renew(asked_at_s)
            if asked_at_s >= self._members_asked_at_s:
                self._set_failsafe(is_active=False)
            if self._lease.is_held:
                self._broker.unfence()
        return True

    async def ask_members(self, me: Identity) -> None:
        """Let the members confirm a master that no controller confirms; called at intervals."""
        broker, epoch = self._broker, self._epoch
        if broker is None or not self._is_master:
            return
        if not self.failsafe.is_needed(epoch, self._lease.left_s):
            return
        asked_at_s, asked = self._lease.now_s(), broker.possible_members()
        is_confirmed = await self.failsafe.is_confirmed(me, epoch, asked)
        if broker is not self._broker or not is_confirmed:
            return
        is_needed = self.failsafe.is_needed(epoch, self._lease.left_s)
        if is_needed and broker.possible_members() <= asked:
            self._lease.renew(asked_at_s)
            if self._lease.is_held:
                self._members_asked_at_s = asked_at_s
                self._set_failsafe(is_active=True)
                broker.unfence()

    def _set_failsafe(self, *, is_active: bool) -> None:
        """Note whether members confirm the master; the broker is running."""
        if is_active == self._is_failsafe:
            return
        self._is_failsafe = is_active
        if self._broker is not None:
            self._broker.note_failsafe(is_active=is_active)
            members = sorted(self._broker.possible_members())
            if is_active:
                log.warning("failsafe.entered epoch=%d members=%s", self._epoch, members)
            else:
                log.warning("failsafe.left epoch=%d members=%s", self._epoch, members)

    async def hand_over(self, me: Identity, silent: frozenset[int], needed: int) -> None:
        """Let another replica be elected, if one can serve.

        Args:
            me: the master.
            silent: ids of the members of the in-sync set that it does not reach.
            needed: number of replicas that acknowledge messages.

        Raises:
            RemoteError: the controller has refused the election.
            TransportError: no answer arrived: it may or may not have been held.
        """
        broker = self._broker
        found = await self._controllers.states(me.broker_name)
        fresh_ms = _RECENT_HEARTBEATS * self._config.controller_heartbeat_interval_ms
        chosen = choose_master(found, me.broker_id, silent, needed, fresh_ms)
        if chosen is not None and broker is not None and broker is self._broker:
            log.warning("controller.handed_over to=%d silent=%s", chosen, sorted(silent))
            broker.fence(f"replica {chosen} becomes master: {sorted(silent)} are not reached here")
            await self._controllers.elect(me._replace(broker_id=chosen), is_designated=True)

    def _log_state(self) -> LogState | None:
        """Return the state of the log; None if it is not known, or the change takes too long."""
        if self._broker is not None:
            return self._broker.log_state()
        limit_s = _CHANGE_TIMEOUTS * self._config.controller_heartbeat_timeout_ms / 1000
        if self._left is None or self._lease.now_s() - self._left[1] > limit_s:
            return None
        return self._left[0]

    def _known_master(self) -> tuple[int | None, int | None]:
        """Return the newest epoch of a role and its master, for a controller that may lack them.

        The master is not known after a start, nor if an older state has given an older role.
        """
        role = self._role
        if role is None or role.master_epoch < self._role_epoch:
            return self._role_epoch or None, None
        return role.master_epoch, role.master_id

    @property
    def _epoch(self) -> int:
        return 0 if self._role is None else self._role.master_epoch

    @property
    def _is_master(self) -> bool:
        return self._role is not None and self._role.is_master

    def _on_lease_ended(self) -> None:
        """Fence the master: another one may be elected soon."""
        if self._broker is not None and self._is_master:
            self.is_answered = False
            self._set_failsafe(is_active=False)
            log.warning("controller.lease_ended epoch=%d", self._epoch)
            self._broker.fence("no controller has confirmed the master within its lease")
