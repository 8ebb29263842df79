"""Counts of what the clients of each host have made in tables that all clients share.

Clients make topics, groups, filters and offsets by naming them, and the broker keeps them. Their
numbers are bounded; so that one program cannot use up what is there for all, the clients of one
host get a share (`client_share_percent`). Counted is what they made since the broker's start, and
what is still there. What administrators make by request counts for nobody.
"""

from __future__ import annotations

from collections.abc import Hashable

PERCENT: int = 100


class Shares:
    """The shares of one table."""

    def __init__(self, most: int) -> None:
        """Let each host make `most`."""
        self.most = most
        self._made: dict[Hashable, tuple[str, int]] = {}
        self._by_host: dict[str, int] = {}

    def has_room(self, host: str | None, size: int = 1) -> bool:
        """Return whether clients of the host may make `size` more; None: an administrator."""
        return host is None or self._by_host.get(host, 0) + size <= self.most

    def add(self, key: Hashable, host: str | None, size: int = 1) -> None:
        """Note that a client of the host made what the table has under `key`."""
        if host is not None:
            self.remove(key)
            self._made[key] = (host, size)
            self._by_host[host] = self._by_host.get(host, 0) + size

    def remove(self, key: Hashable) -> None:
        """Note that the table has nothing under `key` any more."""
        host, size = self._made.pop(key, ("", 0))
        if size:
            self._by_host[host] -= size
            if not self._by_host[host]:
                del self._by_host[host]

    def refusal(self, host: str | None) -> str:
        """Return why there is no room, and the remedy."""
        return (
            f"clients of {host} have made {self.most} since the broker's start, their share: "
            "delete some, have an administrator make it, or raise clientSharePercent"
        )
