"""The locks by which a member has queues for itself, and how long it believes in them.

A lock that was granted is believed in for `lock_expiry_ms`, half the time after which its broker
gives it to others, counted from before it was asked for: so a member that cannot reach the broker
stops before another begins. It is asked for again every `lock_interval_ms`. Time in which the
machine is suspended counts where the system tells of it (Linux).

A member that could not ask for longer than the broker keeps a lock may have had a successor in
between: what it pulled before is worth nothing then, even if it gets the lock again.

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
"""How long brokers keep a lock that is not asked for again; RocketMQ's `lockMaxLiveTime`."""

_SUSPENDED_MIN_S: Final = 0.1


class LockTerms:
    """Since when each lock is held; pure. Times are seconds of one clock that never goes back."""

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._asked_at_s: dict[MessageQueue, float] = {}

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues whose locks were granted and not refused or given up since, sorted."""
        return sorted(self._asked_at_s)

    def held_s(self, queue: MessageQueue, now_s: float) -> float:
        """Return how long the queue is nobody else's for certain, in seconds; negative: it is not.

        Without a word from its broker, that is: later grants make it longer, refusals end it.
        """
        asked_at_s = self._asked_at_s.get(queue)
        return -math.inf if asked_at_s is None else asked_at_s + self._expiry_s - now_s

    def is_held(self, queue: MessageQueue, now_s: float) -> bool:
        """Return whether the queue is nobody else's for certain."""
        return self.held_s(queue, now_s) >= 0

    def asked_at_s(self, queue: MessageQueue) -> float | None:
        """Return when the lock was asked for that was granted last."""
        return self._asked_at_s.get(queue)

    def grant(self, queue: MessageQueue, asked_at_s: float, now_s: float) -> bool:
        """Note that a lock asked for then was granted.

        Returns:
            False if another may have held it since the grant before: what was held by that one is
            lost. True for a lock that is new.
        """
        before_s = self._asked_at_s.get(queue)
        self._asked_at_s[queue] = asked_at_s
        return before_s is None or now_s - before_s <= BROKER_EXPIRY_S

    def drop(self, queue: MessageQueue) -> bool:
        """Note that the lock is not held any more; return whether it was."""
        return self._asked_at_s.pop(queue, None) is not None


class QueueLocks:
    """The locks of one member.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: timeouts.
        suspended_s: tells for how long the machine has been suspended.

    Attributes:
        on_lost: called with a queue that another may have had since its lock was granted.
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
        self._terms = LockTerms(config.lock_expiry_ms / 1000)
        self._failing: set[str] = set()  # brokers that the last request did not reach
        # One request at a time to each broker: a lock that is asked for while it is given up
        # could reach the broker second, and nobody would give it up again.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False
        self._read_suspended_s = suspended_s
        self._suspended_s = suspended_s()
        self.on_lost: Callable[[MessageQueue], None] | None = None

    def is_held(self, queue: MessageQueue) -> bool:
        """Return whether the queue is nobody else's for certain."""
        return self._terms.is_held(queue, self._now_s())

    def held_s(self, queue: MessageQueue) -> float:
        """Return how long it is nobody else's for certain, in seconds; negative: it is not."""
        return self._terms.held_s(queue, self._now_s())

    def age_s(self, queue: MessageQueue) -> float | None:
        """Return how long ago the lock was asked for that is held; None if none is."""
        asked_at_s = self._terms.asked_at_s(queue)
        return None if asked_at_s is None else self._now_s() - asked_at_s

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Ask for the locks of these queues, also of those held; return those that are held now.

        A broker that does not answer changes nothing: what it granted before expires in time. A
        failure is logged once until the broker answers again.
        """
        granted = await asyncio.gather(
            *(self._lock(name, some) for name, some in _by_broker(queues).items())
        )
        return {queue for some in granted for queue in some}

    async def renew(self) -> None:
        """Ask again for all locks that are held."""
        await asyncio.gather(*(self._lock(name, None) for name in _by_broker(self._terms.queues)))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give up the locks of these queues, as far as they are held.

        A broker that does not answer gives them to others when they have expired.
        """
        await asyncio.gather(
            *(self._unlock(name, some) for name, some in _by_broker(queues).items())
        )

    async def close(self) -> None:
        """Give up all locks that are held, and ask for none any more."""
        self._is_closed = True
        await self.unlock(self._terms.queues)

    def drop(self, queue: MessageQueue) -> None:
        """Ask no more for the lock, and leave it to expire: something may still run under it."""
        self._terms.drop(queue)

    async def _lock(
        self, broker_name: str, queues: list[MessageQueue] | None
    ) -> list[MessageQueue]:
        """Ask one broker for locks, or for those held again; return those that are held now."""
        async with self._turns[broker_name]:
            if queues is None:  # not before: what was given up must not be asked for again
                queues = _by_broker(self._terms.queues).get(broker_name)
            return await self._ask(broker_name, queues) if queues and not self._is_closed else []

    async def _ask(self, broker_name: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        asked_at_s = self._now_s()
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
            if error.refresh_route:
                self._instance.routes.refresh_soon(queues[0].topic)
            return []
        self._failing.discard(broker_name)
        for queue in queues:
            if queue in granted:
                is_own = self._terms.grant(queue, asked_at_s, self._now_s())
            else:
                is_own = not self._terms.drop(queue)
            if not is_own:
                log.warning("queue.lock_lost group=%s queue=%s", self._group, queue)
                if self.on_lost is not None:
                    self.on_lost(queue)
        return [queue for queue in queues if queue in granted]

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        async with self._turns[broker_name]:
            held = [queue for queue in queues if self._terms.drop(queue)]
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
        """Return a time that never goes back, and goes on while the machine is suspended."""
        suspended_s = self._read_suspended_s()
        if suspended_s > self._suspended_s + _SUSPENDED_MIN_S:  # else it is two clocks' jitter
            self._suspended_s = suspended_s
        return asyncio.get_running_loop().time() + self._suspended_s

    async def _address(self, queue: MessageQueue) -> str:
        return await self._instance.routes.address(queue.topic, queue.broker_name, self._timeout_s)

    @property
    def _timeout_s(self) -> float:
        return self._config.lock_timeout_ms / 1000

    def _level(self, broker_name: str) -> int:
        """Return at which level to log that a broker did not answer: loud for the first time."""
        level = logging.DEBUG if broker_name in self._failing else logging.WARNING
        self._failing.add(broker_name)
        return level


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found
