"""Locks of queues for ordered consumption: one client of a group at a time. Pure.

An ordered consumer locks a queue before it pulls from it, and renews the lock every 20 s. A lock
that was not renewed for a minute is free: its holder has died, or cannot reach the broker and has
stopped by itself, because a client relies on its lock for half a minute only. A disconnect does not
release locks: a client that closes cleanly unlocks, and after a broken connection it is unknown
whether the client still runs. A restart of the broker does not release them either (`saved_locks`).

Source: RebalanceLockManager.java, apache/rocketmq 5.5.0. Expired locks are removed here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from kourou.model.queue import MessageQueue

EXPIRY_MS: Final = 60_000
"""Time after which a lock that was not renewed is free, in ms (`lockMaxLiveTime`)."""
LOCKS_MAX: Final = 500_000
"""Limit on locks of all groups, about 200 bytes each; above it only existing locks are renewed."""


class _Lock(NamedTuple):
    client_id: str
    requested_at_ms: int


class QueueLocks:
    """The locks of one broker. Times are milliseconds of one clock that never goes back.

    Args:
        expiry_ms: lifetime of a lock after its last request.
        locks_max: limit on locks.

    Attributes:
        holder_changes: number of changes of a queue's holder, releases included.
        grants: number of granted requests for a queue, renewals included.
    """

    def __init__(self, expiry_ms: int = EXPIRY_MS, locks_max: int = LOCKS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._locks_max = locks_max
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self.holder_changes = 0
        self.grants = 0

    def __len__(self) -> int:
        """Return the number of locks, including expired ones that have not been removed."""
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Grant the client those of the queues that no other client of the group holds.

        Returns:
            The granted queues, renewed ones included. The others are held by another client, or
            were refused because of the limit.
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
                self.holder_changes += 1
            locks[queue] = _Lock(client_id, now_ms)
            granted.append(queue)
        self.grants += len(granted)
        if not locks:
            del self._groups[group]
        return granted

    def clear(self) -> None:
        """Remove all locks."""
        self._groups.clear()
        self._count = 0
        self.holder_changes += 1

    def unlock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Unlock those of the queues that the client holds, and return them."""
        locks = self._groups.get(group, {})
        freed: list[MessageQueue] = []
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                freed.append(queue)
        self._count_removed(group, len(freed))
        return freed

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """Return the id of the client that holds the queue; None if it is free."""
        held = self._groups.get(group, {}).get(queue)
        return held.client_id if held is not None and not self._is_expired(held, now_ms) else None

    def groups(self) -> list[str]:
        """Return the groups that have locks, including expired ones."""
        return list(self._groups)

    def holders(self, group: str) -> list[tuple[MessageQueue, str, int]]:
        """Return the group's locks, including expired ones: queue, holder, time of last request."""
        return [(queue, *held) for queue, held in self._groups.get(group, {}).items()]

    def is_any_held(self, group: str, now_ms: int, members: Container[str] | None = None) -> bool:
        """Return whether a client holds a queue of any topic: then the group consumes in order.

        Args:
            group: the group.
            now_ms: the time.
            members: client ids whose locks count; None for all.
        """
        return any(
            not self._is_expired(held, now_ms) and (members is None or held.client_id in members)
            for held in self._groups.get(group, {}).values()
        )

    def expire(self, now_ms: int) -> int:
        """Remove locks that were not renewed in time; return their number."""
        before = self._count
        for group, locks in list(self._groups.items()):
            old = [queue for queue, held in locks.items() if self._is_expired(held, now_ms)]
            for queue in old:
                del locks[queue]
            self._count_removed(group, len(old))
        return before - self._count

    def _is_expired(self, held: _Lock, now_ms: int) -> bool:
        return now_ms - held.requested_at_ms > self._expiry_ms

    def _count_removed(self, group: str, count: int) -> None:
        """Count removed locks of the group, and remove the group with its last lock."""
        self._count -= count
        self.holder_changes += count
        if not self._groups.get(group, True):
            del self._groups[group]
