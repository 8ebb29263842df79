"""Queue locks at brokers, which give a member exclusive use of queues, and their validity.

A granted lock is considered valid for `lock_expiry_ms`, half the time after which the broker grants
it to others, counted from before the request. So a member that cannot reach the broker stops before
another member starts. Locks are renewed every `lock_interval_ms`. Time in which the machine is
suspended counts if the system reports it (Linux).

If a member could not renew a lock for longer than the broker keeps it, another member may have held
it in between. Messages pulled before are then discarded, even if the lock is granted again.

Source: RebalanceImpl.lock, lockAll, unlock; ProcessQueue.isLockExpired.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from kourou.client import calls_consume
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.instance import ClientInstance
from kourou.clock import suspended_s
from kourou.errors import KourouError
from kourou.model.queue import MessageQueue

log = logging.getLogger(__name__)

BROKER_EXPIRY_S: Final = 60.0
"""Seconds for which brokers keep a lock that is not renewed; RocketMQ's `lockMaxLiveTime`."""

_SUSPENDED_MIN_S: Final = 0.1


class LockGrants:
    """Request times of the granted locks; pure. All times are seconds of one monotonic clock."""

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._requested_at_s: dict[MessageQueue, float] = {}

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues whose locks were granted and neither refused nor released since, sorted."""
        return sorted(self._requested_at_s)

    def valid_s(self, queue: MessageQueue, now_s: float) -> float:
        """Return for how many seconds the lock is still valid; negative: it is not valid.

        Later grants extend this time; a refusal ends it.
        """
        requested_at_s = self._requested_at_s.get(queue)
        return -math.inf if requested_at_s is None else requested_at_s + self._expiry_s - now_s

    def is_held(self, queue: MessageQueue, now_s: float) -> bool:
        """Return whether the lock is valid, so that no other member can hold the queue."""
        return self.valid_s(queue, now_s) >= 0

    def requested_at_s(self, queue: MessageQueue) -> float | None:
        """Return the request time of the lock's last grant; None if the lock is not held."""
        return self._requested_at_s.get(queue)

    def grant(self, queue: MessageQueue, requested_at_s: float, now_s: float) -> bool:
        """Record the grant of a lock that was requested at `requested_at_s`.

        Returns:
            False if another member may have held the lock since the previous grant, so that
            messages pulled under that grant must be discarded. True for a new lock.
        """
        previous_s = self._requested_at_s.get(queue)
        self._requested_at_s[queue] = requested_at_s
        return previous_s is None or now_s - previous_s <= BROKER_EXPIRY_S

    def drop(self, queue: MessageQueue) -> bool:
        """Record that the lock is no longer held; return whether it was held."""
        return self._requested_at_s.pop(queue, None) is not None


class QueueLocks:
    """The locks of one member.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: timeouts.
        suspended_s: returns the seconds for which the machine has been suspended.

    Attributes:
        on_lost: called with a queue that another member may have consumed since its lock was
            granted.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
        suspended_s: Callable[[], float] = suspended_s,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._grants = LockGrants(config.lock_expiry_ms / 1000)
        self._failing: set[str] = set()  # names of brokers whose last request failed
        # One request at a time to each broker: otherwise a lock request could overtake the unlock
        # request before it, and the lock would stay held.
        self._request_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False
        self._read_suspended_s = suspended_s
        self._suspended_s = suspended_s()
        self.on_lost: Callable[[MessageQueue], None] | None = None

    def is_held(self, queue: MessageQueue) -> bool:
        """Return whether the lock is valid, so that no other member can hold the queue."""
        return self._grants.is_held(queue, self._now_s())

    def valid_s(self, queue: MessageQueue) -> float:
        """Return for how many seconds the lock is still valid; negative: it is not valid."""
        return self._grants.valid_s(queue, self._now_s())

    def age_s(self, queue: MessageQueue) -> float | None:
        """Return the seconds since the held lock was requested; None if it is not held."""
        requested_at_s = self._grants.requested_at_s(queue)
        return None if requested_at_s is None else self._now_s() - requested_at_s

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Request locks of these queues, held ones included; return the queues granted.

        If a broker does not answer, its earlier grants stay valid until they expire. A failure is
        logged as a warning once, until the broker answers again.
        """
        granted = await asyncio.gather(
            *(self._lock(name, some) for name, some in _by_broker(queues).items())
        )
        return {queue for some in granted for queue in some}

    async def renew(self) -> None:
        """Renew all held locks."""
        await asyncio.gather(*(self._lock(name, None) for name in _by_broker(self._grants.queues)))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release the held locks of these queues.

        A broker that does not answer grants them to other members once they have expired.
        """
        await asyncio.gather(
            *(self._unlock(name, some) for name, some in _by_broker(queues).items())
        )

    async def close(self) -> None:
        """Release all held locks, and request none from now on."""
        self._is_closed = True
        await self.unlock(self._grants.queues)

    def drop(self, queue: MessageQueue) -> None:
        """Stop renewing the lock and let it expire: a listener call may still run under it."""
        self._grants.drop(queue)

    async def _lock(
        self, broker_name: str, queues: list[MessageQueue] | None
    ) -> list[MessageQueue]:
        """Request locks from one broker, by default the held ones; return the queues granted."""
        async with self._request_locks[broker_name]:
            if queues is None:  # read only now: a lock released meanwhile must not be renewed
                queues = _by_broker(self._grants.queues).get(broker_name)
            return (
                await self._request(broker_name, queues) if queues and not self._is_closed else []
            )

    async def _request(self, broker_name: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        requested_at_s = self._now_s()
        try:
            granted = await calls_consume.lock_queues(
                self._instance.pool,
                await self._address(queues[0]),
                self._group,
                self._instance.client_id,
                queues,
                timeout_s=self._timeout_s,
            )
        except KourouError as error:
            log.log(
                self._level(broker_name),
                "queue.not_locked group=%s broker=%s reason=%s",
                self._group,
                broker_name,
                error,
            )
            self._instance.routes.on_failure(queues[0].topic, error)
            return []
        self._failing.discard(broker_name)
        for queue in queues:
            if queue in granted:
                is_own = self._grants.grant(queue, requested_at_s, self._now_s())
            else:
                is_own = not self._grants.drop(queue)
            if not is_own:
                log.warning("queue.lock_lost group=%s queue=%s", self._group, queue)
                if self.on_lost is not None:
                    self.on_lost(queue)
        return [queue for queue in queues if queue in granted]

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        async with self._request_locks[broker_name]:
            held = [queue for queue in queues if self._grants.drop(queue)]
            if not held:
                return
            try:
                await calls_consume.unlock_queues(
                    self._instance.pool,
                    await self._address(held[0]),
                    self._group,
                    self._instance.client_id,
                    held,
                    timeout_s=self._timeout_s,
                )
            except KourouError as error:
                log.log(
                    self._level(broker_name),
                    "queue.not_unlocked group=%s broker=%s reason=%s",
                    self._group,
                    broker_name,
                    error,
                )

    def _now_s(self) -> float:
        """Return a monotonic time in seconds that includes the time the machine is suspended."""
        suspended_s = self._read_suspended_s()
        if suspended_s > self._suspended_s + _SUSPENDED_MIN_S:  # less is jitter of the two clocks
            self._suspended_s = suspended_s
        return asyncio.get_running_loop().time() + self._suspended_s

    async def _address(self, queue: MessageQueue) -> str:
        return await self._instance.routes.address(queue.topic, queue.broker_name, self._timeout_s)

    @property
    def _timeout_s(self) -> float:
        return self._config.lock_timeout_ms / 1000

    def _level(self, broker_name: str) -> int:
        """Return the level to log a broker's failure at: WARNING the first time, then DEBUG."""
        level = logging.DEBUG if broker_name in self._failing else logging.WARNING
        self._failing.add(broker_name)
        return level


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found
