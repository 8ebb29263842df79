"""Puts whose records are stored here, and are acknowledged when slaves have them as well.

A put of a client that gets its copies too late is answered with FLUSH_SLAVE_TIMEOUT: its records
are stored, on fewer brokers than configured. Time counts from the append, as for the sync. A put of
the broker itself (`Waiter.waits_for_copies` is false) waits until it is confirmed as well, however
long: it is here only in controller mode, where a slave that does not keep up leaves the set.

Source: CommitLog.handleDiskFlushAndHA, GroupTransferService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kourou.broker.writing.put import PendingPuts, PutResult, PutStatus, Waiter

_DRAIN_S: Final = 1.0
"""How long `close` waits for copies, and puts of the broker itself after `drain`."""


@dataclass(frozen=True, slots=True)
class CopyRule:
    """Condition of an answer besides the own disk.

    Attributes:
        copied_position: returns the log position up to which enough slaves have the log.
        timeout_ms: how long a put waits for that from its append on.
        reason: of the answer to a put that waited in vain.
        may_be_undone: whether the next master may lack what was not copied. A stop then refuses
            the puts that wait, so that clients try again: it is often a change of the role.
    """

    copied_position: Callable[[], int]
    timeout_ms: int
    reason: str
    may_be_undone: bool = False


class CopyWaits:
    """The puts that wait for copies; those of clients, and its own, in the order of the log."""

    def __init__(
        self,
        rule: CopyRule,
        pending: PendingPuts,
        loop: asyncio.AbstractEventLoop,
        sync_timeout_ms: int,
    ) -> None:
        """Wait for nothing yet.

        Args:
            rule: the condition.
            pending: the pending puts, which count against the limits until they are answered.
            loop: the event loop.
            sync_timeout_ms: by how much `Waiter.deadline_s` is later than the append.
        """
        self._rule = rule
        self._pending = pending
        self._loop = loop
        self._later_s = (rule.timeout_ms - sync_timeout_ms) / 1000
        self._clients: deque[Waiter] = deque()
        self._own: deque[Waiter] = deque()  # puts of the broker itself
        self._timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    def add(self, waiter: Waiter) -> None:
        """Acknowledge the put, which is stored here, when it has its copies; see `advance`."""
        (self._clients if waiter.waits_for_copies else self._own).append(waiter)

    def is_late(self, waiter: Waiter) -> bool:
        """Return whether a put is past its time for copies."""
        return waiter.deadline_s + self._later_s <= self._loop.time()

    def late(self, waiter: Waiter) -> None:
        """Answer a put that has waited too long."""
        waiter.late(PutStatus.FLUSH_SLAVE_TIMEOUT, self._rule.reason)

    def advance(self, visible: int) -> None:
        """Acknowledge the puts that have their copies by now.

        Args:
            visible: the log position below which records are dispatched.
        """
        if self._clients or self._own:
            copied = self._rule.copied_position()
            self._acknowledge(self._clients, copied)
            self._acknowledge(self._own, min(copied, visible))
        self._schedule()

    def _acknowledge(self, waiters: deque[Waiter], position: int) -> None:
        while waiters and waiters[0].end <= position:
            waiter = waiters.popleft()
            self._pending.remove(waiter)
            waiter.stored()

    def drain(self) -> None:
        """Refuse puts of the broker itself that wait for a second, from now on.

        The broker stops, and waits for their answers before `close`: a master that was replaced
        gets no copies any more.
        """
        self._drain_timer = self._loop.call_later(_DRAIN_S, self._drain_own)

    def _drain_own(self) -> None:
        self._refuse(self._own)
        self.drain()

    def _refuse(self, waiters: deque[Waiter]) -> None:
        while waiters:
            waiter = waiters.popleft()
            self._pending.remove(waiter)
            result = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self._rule.reason)
            waiter.answer(result)

    async def close(self) -> None:
        """Wait a second at most for the remaining copies, and answer all puts."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                while self._clients or self._own:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            if self._rule.may_be_undone:
                self._refuse(self._clients)
            while self._clients:
                self._give_up(self._clients.popleft())
            self._refuse(self._own)
        self.abandon()

    def abandon(self) -> None:
        """Answer no put any more."""
        self._clients.clear()
        self._own.clear()
        for timer in (self._timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._drain_timer = None

    def _schedule(self) -> None:
        if not (self._clients or self._own):
            self._emptied.set()
        elif self._clients and self._timer is None:
            due_s = self._clients[0].deadline_s + self._later_s
            self._timer = self._loop.call_at(due_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        while self._clients and self.is_late(self._clients[0]):
            self._give_up(self._clients.popleft())
        self._schedule()

    def _give_up(self, waiter: Waiter) -> None:
        self._pending.remove(waiter)
        self.late(waiter)
