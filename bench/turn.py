"""Turns: the peers run one after the other, while the servers of all others are suspended.

Servers run for all rounds, so that a Java broker stays warm; between their turns they are suspended
by SIGSTOP and use no CPU. Data written in a turn is synced to disk before the next turn begins.
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
    """A message system to measure.

    Attributes:
        name: name for `--peers` and for the table column.
        about: version and settings, for the results.
        start: starts a server below a new directory, and returns when it accepts sends.
        first_warm_s: duration of the warm-up of the first measurement of a question on a server.
        start_warm_s: duration of sends to each new server, before any question.
        is_slow: whether its start and stop take many seconds.
        is_ours: whether the goals apply to it.
        is_remoting: whether it uses RocketMQ's protocol; others support single sends only.
        start_with_proxy: starts a server that serves gRPC clients too; None if there is none.
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
    start_with_proxy: Callable[[Path, Flush], Server] | None = None
    client: tuple[str, str] | None = None

    def starter(self, *, has_proxy: bool) -> Callable[[Path, Flush], Server]:
        """Return what starts its server, with a gRPC proxy or without."""
        if not has_proxy:
            return self.start
        if self.start_with_proxy is None:
            raise ValueError(f"{self.name} serves no gRPC clients")
        return self.start_with_proxy


class Stage:
    """The started servers, of which at most one is not suspended."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._count = 0
        self._servers: dict[tuple[str, Flush, bool], Server] = {}
        self._running: Server | None = None

    def server(self, peer: Peer, flush: Flush, *, has_proxy: bool = False) -> Server:
        """Return the peer's running server, with all others suspended; start it if necessary."""
        key = peer.name, flush, has_proxy
        server = self._servers.get(key)
        if server is None or server is not self._running:
            self.suspend_all()
        if server is None:
            server = peer.starter(has_proxy=has_proxy)(
                self.directory(f"{peer.name}-{flush}"), flush
            )
            self._servers[key] = server
            if peer.start_warm_s:
                seconds = f"{peer.start_warm_s}s"
                server.load("send", topic="warm-up", conns=16, warm="0s", dur=seconds)
                if has_proxy:
                    server.load_grpc("send", topic="warm-up", conns=8, warm="0s", dur=seconds)
        elif server is not self._running:
            server.resume()
        self._running = server
        return server

    def directory(self, name: str) -> Path:
        """Return the path of a new directory."""
        self._count += 1
        return self._home / f"{self._count:02}-{name}"

    def suspend_all(self) -> None:
        """Suspend all servers, and sync all written data to disk."""
        if self._running is not None:
            self._running.pause()
            self._running = None
        os.sync()

    def close(self) -> None:
        """Kill all servers; their stores are no longer needed."""
        for server in self._servers.values():
            server.kill()


@dataclass
class Turn:
    """One peer's turn at one question.

    Attributes:
        seconds: duration of the measurement.
        reports: reports of the load generator in this turn.
    """

    peer: Peer
    stage: Stage
    seconds: float
    question: str
    reports: list[dict[str, Any]] = field(default_factory=list)

    def load(self, flush: Flush, mode: str, *, times: float = 1, **flags: object) -> dict[str, Any]:
        """Load the warmed-up server of the peer for `times` the usual time; return the report.

        If a peer refuses sends under load, as Java does when it falls behind, only accepted sends
        count. Kourou must accept all.

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

    def load_grpc(
        self, flush: Flush, mode: str, *, topic: str, group: str = "bench", **flags: object
    ) -> dict[str, Any]:
        """Load the peer's gRPC proxy like `load`; topic and group are made first.

        Raises:
            RuntimeError: the generator failed, or a call was refused.
        """
        server = self.stage.server(self.peer, flush, has_proxy=True)
        is_first = self.question not in server.filled
        server.filled.add(self.question)
        names = {"topic": topic, "group": group}
        server.load("setup", **names)
        warm_s = self.peer.first_warm_s if is_first else WARM_SECONDS
        times = {"warm": f"{warm_s}s", "dur": f"{self.seconds}s"}
        report = server.load_grpc(mode, **{**times, **names, **flags})
        self.reports.append(report)
        return report

    def fill(self, flush: Flush, topic: str, count: int) -> None:
        """Send messages of 1 KB, unless the topic is already filled."""
        server = self.stage.server(self.peer, flush)
        if topic not in server.filled:
            server.filled.add(topic)
            flags = {"topic": topic, "conns": 64, "window": 1, "count": count, "dur": "120s"}
            server.load("send", **flags)

    def alone(self) -> Iterator[bool]:
        """Yield for each load of this turn whether no other program used the machine."""
        return map(load_generator.is_alone, self.reports)

    def supports(self, mode: str) -> bool:
        """Return whether this peer supports the mode of the load generator."""
        return self.peer.is_remoting or mode == "send"

    @contextmanager
    def fresh(self, flush: Flush, *, has_proxy: bool = False) -> Iterator[Server]:
        """Start a server for this turn only; its store is removed afterwards."""
        self.stage.suspend_all()
        directory = self.stage.directory(f"{self.peer.name}-fresh")
        try:
            server = self.peer.starter(has_proxy=has_proxy)(directory, flush)
            try:
                yield server
            finally:
                server.kill()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
