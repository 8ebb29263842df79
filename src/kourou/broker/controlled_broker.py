"""The operations of a running broker in controller mode, for the part that talks to the controller.

They do nothing where they do not concern the broker's role, so that a caller need not distinguish.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from kourou.broker.components import Components
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet, LogState
from kourou.broker.replication.in_sync_keeper import InSyncKeeper


class ControlledBroker(ABC):
    """Base of `Broker`.

    Attributes:
        role: the decision of the controller for this run; None without a controller.
    """

    def __init__(self, role: ControlledRole | None) -> None:
        """Take the role of this run."""
        self.role: Final = role

    @property
    @abstractmethod
    def components(self) -> Components:
        """The components of the running broker.

        Raises:
            ClosedError: the broker is not started.
        """

    @property
    def _keeper(self) -> InSyncKeeper | None:
        return self.components.keeper

    def in_sync(self) -> InSyncSet:
        """Return the in-sync set; for a master, the last one that was confirmed.

        Raises:
            ClosedError: the broker is not started.
        """
        assert self.role is not None, "the broker has a controller"
        return self.role.in_sync if self._keeper is None else self._keeper.in_sync

    def adopt_in_sync(self, found: InSyncSet, asked_at_s: float | None = None) -> None:
        """Let a master take a set that the controller has stored; an older one has no effect.

        Args:
            found: the set of an answer, or of a notification.
            asked_at_s: the loop time before the answer's request was sent. A set of the current
                epoch then shows that proposals without an answer, if they had ended by that time,
                were not stored. None for a notification, which shows it only with a newer epoch.

        Raises:
            ClosedError: the broker is not started.
        """
        if self._keeper is not None:
            self._keeper.adopt(found, asked_at_s)

    def fence(self, reason: str) -> None:
        """Let a master refuse changes with `reason`, and acknowledge none, until `unfence`.

        Raises:
            ClosedError: the broker is not started.
        """
        if self._keeper is not None:
            self._keeper.fence(reason)

    def unfence(self) -> None:
        """Accept changes again.

        Raises:
            ClosedError: the broker is not started.
        """
        if self._keeper is not None:
            self._keeper.unfence()

    def possible_members(self) -> frozenset[int]:
        """Return the members of all in-sync sets that the controller may have stored.

        Of a slave, the members that its role names.

        Raises:
            ClosedError: the broker is not started.
        """
        return self.in_sync().members if self._keeper is None else self._keeper.union

    def note_failsafe(self, *, is_active: bool) -> None:
        """Let a master report whether members confirm it, because no controller answers.

        Raises:
            ClosedError: the broker is not started.
        """
        if self._keeper is not None:
            self._keeper.is_failsafe = is_active

    def unfit_reason(self) -> str:
        """Return why no message can be stored: the disk is full, failed, or does not end a sync.

        Empty if messages can be stored.

        Raises:
            ClosedError: the broker is not started.
        """
        context = self.components.context
        late = context.commit.late_result()
        return context.store.writer.unwritable_reason or ("" if late is None else late.reason)

    def truncation_needed(self) -> asyncio.Future[int]:
        """Return a future that is done when a slave's log has an end that its master lacks.

        Its result is the position at which `kourou.store.tools.truncate.truncate_replica` must
        truncate the log, when the broker is stopped. It is never done for a master. Cancelling it
        has no effect on the broker.

        Raises:
            ClosedError: the broker is not started.
        """
        slave = self.components.slave
        if slave is None:
            return asyncio.get_running_loop().create_future()
        return asyncio.shield(slave.truncation)

    @property
    def has_confirmed(self) -> bool:
        """Whether a slave has everything that its master calls confirmed, in this run."""
        slave = self.components.slave
        if slave is None or not slave.confirmed:
            return False
        return slave.confirmed <= self.components.context.commit.stored_position

    @property
    def role_epoch(self) -> int:
        """The newest epoch in which the replica had a role, by its store; 0 before the first."""
        replica = self.components.replica
        assert replica is not None, "the broker has a controller"
        return replica.acknowledged.role_epoch

    def log_state(self) -> LogState:
        """Return epoch, end and confirm offset of the log, for heartbeats.

        Raises:
            ClosedError: the broker is not started.
        """
        replica, slave = self.components.replica, self.components.slave
        assert replica is not None, "the broker has a controller"
        end = self.components.context.commit.stored_position
        confirmed = 0 if slave is None else min(end, slave.confirmed)
        if self._keeper is not None:
            confirmed = self._keeper.confirm_position
        return LogState(replica.epochs.last_epoch, end, confirmed)
