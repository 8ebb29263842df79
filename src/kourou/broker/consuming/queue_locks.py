"""Which client of a group consumes a queue in order: one at a time; pure.

An ordered consumer locks a queue before it pulls it and asks again every 20 s. A lock that was not
asked for again for a minute is free: its holder died, or cannot reach the broker and has stopped by
itself, as a client believes in its lock for half a minute. No client that leaves loses its locks by
that: who closes properly unlocks, and of a broken connection nobody can tell whether the client
behind it still runs. Nor does a broker that starts again forget them (`saved_locks`).

Source: RebalanceLockManager.java, apache/rocketmq 5.5.0. What expired is forgotten here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from kourou.model.queue import MessageQueue

EXPIRY_MS: Final = 60_000
"""A lock that nobody asked for again is free after this time, in ms (`lockMaxLiveTime`)."""
LOCKS_MAX: Final = 500_000
"""Locks of all groups together, about 200 bytes each; above it, none but those held are granted."""


class _Lock(NamedTuple):
    client_id: str
    asked_at_ms: int


class QueueLocks:
    """The locks of one broker. Times are milliseconds of one clock that never goes back.

    Args:
        expiry_ms: how long a lock lasts after it was asked for.
        locks_max: how many there may be.

    Attributes:
        moves: counts the queues that got another holder, or none.
        asks: counts the times that a queue was asked for and given.
    """

    def __init__(self, expiry_ms: int = EXPIRY_MS, locks_max: int = LOCKS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._locks_max = locks_max
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self.moves = 0
        self.asks = 0

    def __len__(self) -> int:
        """Return how many are remembered, the expired ones that nobody looked at included."""
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Give the client those of the queues that no other of the group holds; return them.

        Its own are its own for longer. The rest stays whose it is, or was not granted for want of
        room.
        """
        locks = self._groups.setdefault(group, {})
        granted: list[MessageQueue] = []
        for queue in queues:
            held = locks.get(queue)
            if held is None:
                if self._count >= self._locks_max:
                    continue
                self._count += 1
            elif held.client_id != client_id and not self._is_expired(held, now_ms):
                continue
            if held is None or held.client_id != client_id:
                self.moves += 1
            locks[queue] = _Lock(client_id, now_ms)
            granted.append(queue)
        self.asks += len(granted)
        if not locks:
            del self._groups[group]
        return granted

    def unlock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Free those of the queues that the client holds, and return them."""
        locks = self._groups.get(group, {})
        freed: list[MessageQueue] = []
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                freed.append(queue)
        self._forget(group, len(freed))
        return freed

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """Return the id of the client that holds the queue."""
        held = self._groups.get(group, {}).get(queue)
        return held.client_id if held is not None and not self._is_expired(held, now_ms) else None

    def groups(self) -> list[str]:
        """Return the groups that have locks, expired ones included."""
        return list(self._groups)

    def holders(self, group: str) -> list[tuple[MessageQueue, str, int]]:
        """Return the group's locks, expired ones included: queue, holder, when it last asked."""
        return [(queue, *held) for queue, held in self._groups.get(group, {}).items()]

    def is_any_held(self, group: str, now_ms: int, members: Container[str] | None = None) -> bool:
        """Return whether a client holds a queue of any topic: the group consumes in order.

        Args:
            group: whose locks count.
            now_ms: the time.
            members: the clients whose locks count; None: those of any client.
        """
        return any(
            not self._is_expired(held, now_ms) and (members is None or held.client_id in members)
            for held in self._groups.get(group, {}).values()
        )

    def expire(self, now_ms: int) -> int:
        """Forget the locks that nobody asked for again; return how many they were."""
        before = self._count
        for group, locks in list(self._groups.items()):
            old = [queue for queue, held in locks.items() if self._is_expired(held, now_ms)]
            for queue in old:
                del locks[queue]
            self._forget(group, len(old))
        return before - self._count

    def _is_expired(self, held: _Lock, now_ms: int) -> bool:
        return now_ms - held.asked_at_ms > self._expiry_ms

    def _forget(self, group: str, count: int) -> None:
        """Note that so many locks of the group were removed."""
        self._count -= count
        self.moves += count
        if not self._groups.get(group, True):
            del self._groups[group]
