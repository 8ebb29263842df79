"""Commits of finished batches for the groups of `commitGroup`, apart from the stream.

A stream does not wait for a commit, and a commit that fails is logged: a later one replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import KourouError
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Runtime
from kourou.spark.cluster import ClusterClient
from kourou.spark.planning import BrokerTopic
from kourou.spark.stream_progress import CommitTarget, SourceProgress

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS: Final = 10_000
"""Timeout of a commit with its retries."""

_CONNECTIONS_MAX: Final = 16
"""Number of connected groups; the one that was connected first is closed for another."""


@dataclass(slots=True)
class _Connection:
    """Client of a group, and the offsets that it committed last or found to be no news."""

    client: ClusterClient
    committed: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Waiting:
    """Offsets that wait for the end of a commit; see `ClusterClient.advance_offsets`."""

    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    topic_begins: dict[BrokerTopic, int] = field(default_factory=dict)
    latest: dict[MessageQueue, int] = field(default_factory=dict)

    def add(self, source: SourceProgress) -> None:
        self.offsets |= source.ends
        self.topic_begins |= source.topic_begins
        self.latest |= source.latest


class GroupCommits:
    """Commits the newest offsets of each group; used in the thread of one event loop only.

    Args:
        runtime: the environment, for tests; None: the real one.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._runtime = runtime
        self._waiting: dict[CommitTarget, _Waiting] = {}
        self._running: dict[CommitTarget, asyncio.Task[None]] = {}
        self._connections: dict[CommitTarget, _Connection] = {}

    def submit(self, source: SourceProgress) -> None:
        """Commit the end of a source's batch soon, if it has a group."""
        target = source.commit
        if target is None:
            return
        self._waiting.setdefault(target, _Waiting()).add(source)
        if target not in self._running:
            self._running[target] = asyncio.get_running_loop().create_task(
                self._commit_waiting(target), name=f"commit {target.group}"
            )

    async def close(self, timeout_s: float) -> None:
        """Wait for the commits, at most so long; then close the connections."""
        running = list(self._running.values())
        if running:
            _, late = await asyncio.wait(running, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in self._connections.values():
            await connection.client.close()
        self._connections.clear()

    async def _commit_waiting(self, target: CommitTarget) -> None:
        try:
            while waiting := self._waiting.pop(target, None):
                await self._commit(target, waiting)
        finally:
            del self._running[target]

    async def _commit(self, target: CommitTarget, waiting: _Waiting) -> None:
        try:
            connection = await self._connection(target)
            changed = {
                queue: offset
                for queue, offset in waiting.offsets.items()
                if connection.committed.get(queue) != offset
            }
            await connection.client.advance_offsets(changed, waiting.topic_begins, waiting.latest)
        except KourouError as error:
            log.warning("spark_group.not_committed group=%s reason=%s", target.group, error)
        else:
            connection.committed |= changed

    async def _connection(self, target: CommitTarget) -> _Connection:
        connection = self._connections.get(target)
        if connection is None:
            idle = [held for held in self._connections if held not in self._running]
            if len(self._connections) >= _CONNECTIONS_MAX and idle:
                await self._connections.pop(idle[0]).client.close()
            client = ClusterClient(
                target.connection, target.group, COMMIT_TIMEOUT_MS, self._runtime
            )
            await client.start()
            connection = self._connections[target] = _Connection(client)
        return connection
