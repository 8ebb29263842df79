"""Turns: one peer after the other runs, while the servers of all others stand still.

Servers stay up over all rounds, so that a Java broker is warm when it is measured again; between
their turns they are stopped by SIGSTOP and have no CPU. What a turn wrote is on the device before
the next one begins.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import load_generator
from bench.servers import Flush, Server

WARM_SECONDS: Final = 0.7


@dataclass(frozen=True)
class Peer:
    """Something that can be measured.

    Attributes:
        name: for `--peers`, and the column of the table.
        about: version and settings, for the results.
        start: starts a server below a new directory, and returns when it accepts sends.
        first_warm_s: of warm-up, when a question is put to one of its servers for the first time.
        start_warm_s: of sends to each of its servers, before any question.
        is_slow: whether its start and stop take many seconds.
        is_ours: whether the goals are for it.
        is_remoting: whether it speaks RocketMQ's protocol; others take only single sends.
        client: the interpreter and the loop (`asyncio`, `uvloop`) of clients of the same install.
    """

    name: str
    about: str
    start: Callable[[Path, Flush], Server]
    first_warm_s: float = WARM_SECONDS
    start_warm_s: float = 0.0
    is_slow: bool = False
    is_ours: bool = False
    is_remoting: bool = True
    client: tuple[str, str] | None = None


class Stage:
    """The servers that are up, at most one of them running."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._count = 0
        self._servers: dict[tuple[str, Flush], Server] = {}
        self._running: Server | None = None

    def server(self, peer: Peer, flush: Flush) -> Server:
        """Return the peer's server, running while all others stand still."""
        server = self._servers.get((peer.name, flush))
        if server is None or server is not self._running:
            self.rest()
        if server is None:
            server = peer.start(self.directory(f"{peer.name}-{flush}"), flush)
            self._servers[peer.name, flush] = server
            if peer.start_warm_s:
                server.load(
                    "send", topic="warm-up", conns=16, warm="0s", dur=f"{peer.start_warm_s}s"
                )
        elif server is not self._running:
            server.resume()
        self._running = server
        return server

    def directory(self, name: str) -> Path:
        """Return a directory that nobody had before."""
        self._count += 1
        return self._home / f"{self._count:02}-{name}"

    def rest(self) -> None:
        """Let all servers stand still, and everything written reach the device."""
        if self._running is not None:
            self._running.pause()
            self._running = None
        os.sync()

    def close(self) -> None:
        """End all servers at once: their stores are not wanted any more."""
        for server in self._servers.values():
            server.kill()


@dataclass
class Turn:
    """One peer's turn at one question.

    Attributes:
        seconds: to measure.
        reports: what the load generator said in this turn.
    """

    peer: Peer
    stage: Stage
    seconds: float
    question: str
    reports: list[dict[str, Any]] = field(default_factory=list)

    def load(self, flush: Flush, mode: str, *, times: float = 1, **flags: object) -> dict[str, Any]:
        """Load the peer's server, warmed up, for `times` the usual time; return the report.

        A peer that refuses sends under load (Java does, when it is behind) is measured by those it
        accepts; Kourou must accept all.

        Raises:
            RuntimeError: the generator failed, or Kourou refused.
        """
        server = self.stage.server(self.peer, flush)
        is_first = self.question not in server.filled
        server.filled.add(self.question)
        warm_s = self.peer.first_warm_s if is_first else WARM_SECONDS
        report = server.load(mode, warm=f"{warm_s}s", dur=f"{self.seconds * times}s", **flags)
        if self.peer.is_ours and load_generator.has_refused(report):
            raise RuntimeError(f"{report['errors']} sends refused, codes {report.get('codes')}")
        self.reports.append(report)
        return report

    def fill(self, flush: Flush, topic: str, count: int) -> None:
        """Send messages of 1 KB, if the server does not have them yet."""
        server = self.stage.server(self.peer, flush)
        if topic not in server.filled:
            server.filled.add(topic)
            flags = {"topic": topic, "conns": 64, "window": 1, "count": count, "dur": "120s"}
            server.load("send", **flags)

    def alone(self) -> Iterator[bool]:
        """Tell of each load of this turn whether nothing else used the machine."""
        return map(load_generator.is_alone, self.reports)

    def takes(self, mode: str) -> bool:
        """Tell whether this peer's servers can be asked this way."""
        return self.peer.is_remoting or mode == "send"

    @contextmanager
    def fresh(self, flush: Flush) -> Iterator[Server]:
        """Start a server for this turn alone; its store is removed afterwards."""
        self.stage.rest()
        directory = self.stage.directory(f"{self.peer.name}-fresh")
        try:
            server = self.peer.start(directory, flush)
            try:
                yield server
            finally:
                server.kill()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
