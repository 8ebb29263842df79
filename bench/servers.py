"""Servers under measurement, each started alone on free ports of the loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kourou.testing.process import Serving
from tests.interop.peer import start_java


@dataclass(frozen=True)
class Server:
    """One running broker with its name server.

    Attributes:
        pids: its processes, for CPU and memory.
        ready_s: from the start of the first process until a send was possible.
    """

    name: str
    broker_addr: str
    namesrv_addr: str
    pids: tuple[int, ...]
    ready_s: float

    def memory_mb(self) -> float:
        """Return the resident memory of all its processes in MiB."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return pages * 4096 / 2**20


@contextmanager
def kourou(home: Path, *, flush: str = "sync") -> Iterator[Server]:
    """Run `kourou serve` below `home`."""
    began = time.monotonic()
    with Serving.start(home / "store", "--flush", flush) as serving:
        took = time.monotonic() - began
        pids = (serving.process.pid,)
        yield Server("kourou", serving.broker, serving.namesrv, pids, took)


@contextmanager
def java(jars: str, home: Path, *, flush: str = "sync") -> Iterator[Server]:
    """Run the Java name server and broker below `home`."""
    began = time.monotonic()
    server = start_java(jars, home, flush=f"{flush.upper()}_FLUSH", heap="2g")
    try:
        pids = tuple(process.pid for process in server.processes)
        took = time.monotonic() - began
        yield Server("java", server.broker_addr, server.namesrv_addr, pids, took)
    finally:
        server.stop()
