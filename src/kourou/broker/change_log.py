"""The interface by which the tables of a master have their changes copied to its replicas.

It is served by `kourou.broker.replication.table_log`.
"""

from __future__ import annotations

from typing import Protocol


class ChangeLog(Protocol):
    """Collects changed entries of tables, and copies their state."""

    def note_topic(self, name: str) -> None:
        """Note that a topic was created, changed or deleted."""

    def note_group(self, name: str) -> None:
        """Note that a group was created, changed or deleted, or its read bans were."""

    def note_mode(self, topic: str, group: str) -> None:
        """Note that the request mode of a group in a topic was set."""

    async def flush(self) -> None:
        """Return when the in-sync replicas have all changes that were noted.

        Raises:
            ChangeNotCopiedError: they do not have them in time; the next call tries again.
        """
