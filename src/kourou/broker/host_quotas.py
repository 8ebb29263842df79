"""Quotas per client host in tables that all clients share.

Clients create topics, groups, filters and offsets by using them. Each table has a size limit. The
clients of one host may fill only a share of it (`client_share_percent`), so that one program cannot
exhaust a table for all others. An entry counts against the host whose client created it, from the
broker's start until the entry is removed. Entries that administrators create by request do not
count.
"""

from __future__ import annotations

from collections.abc import Hashable

PERCENT: int = 100


class HostQuota:
    """The quota of each host in one table."""

    def __init__(self, limit: int) -> None:
        """Allow each host `limit` units."""
        self.limit = limit
        self._entries: dict[Hashable, tuple[str, int]] = {}
        self._used: dict[str, int] = {}

    def has_room(self, host: str | None, size: int = 1) -> bool:
        """Return whether clients of the host may add `size` units.

        `host` is None for an administrator, who has no quota.
        """
        return host is None or self._used.get(host, 0) + size <= self.limit

    def add(self, key: Hashable, host: str | None, size: int = 1) -> None:
        """Count the entry `key`, which a client of the host created, as `size` units."""
        if host is not None:
            self.remove(key)
            self._entries[key] = (host, size)
            self._used[host] = self._used.get(host, 0) + size

    def remove(self, key: Hashable) -> None:
        """Stop counting the entry `key`, which was removed from the table."""
        host, size = self._entries.pop(key, ("", 0))
        if size:
            self._used[host] -= size
            if not self._used[host]:
                del self._used[host]

    def refusal(self, host: str | None) -> str:
        """Return the reason why the host has no room left, with the remedy."""
        return (
            f"clients of {host} have created {self.limit} since the broker's start, which is their "
            "share: delete some, have an administrator create it, or raise clientSharePercent"
        )
