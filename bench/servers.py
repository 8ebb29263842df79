"""Measured servers: a broker and its name server, as processes on loopback."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bench import load_generator

Flush = Literal["sync", "async"]
Dialect = Literal["remoting", "redis", "nats"]

START_SECONDS: Final = 60
STOP_SECONDS: Final = 90


@dataclass
class Server:
    """One running broker with its name server.

    Attributes:
        processes: all its processes, for CPU, memory, pause and stop.
        ready_s: time from the start of the first process until a send was accepted.
        dialect: the protocol of its sends.
        grpc_addr: address of its gRPC proxy; empty without one.
        filled: topics that are filled, and questions that have been measured.
    """

    name: str
    broker_addr: str
    namesrv_addr: str
    processes: Sequence[subprocess.Popen[bytes]]
    ready_s: float = 0.0
    dialect: Dialect = "remoting"
    grpc_addr: str = ""
    filled: set[str] = field(default_factory=set)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids."""
        return tuple(process.pid for process in self.processes)

    def load(self, mode: str, **flags: object) -> dict[str, Any]:
        """Run the load generator against it; return the report, perhaps with refused requests.

        Raises:
            RuntimeError: the load generator failed.
        """
        if self.dialect != "remoting":
            mode = f"{self.dialect}-{mode}"
        pids = ",".join(map(str, self.pids))
        return load_generator.attempt(mode, addr=self.broker_addr, pids=pids, **flags)

    def load_grpc(self, mode: str, **flags: object) -> dict[str, Any]:
        """Run the gRPC load generator against its proxy; return the report.

        Raises:
            RuntimeError: the load generator failed, or a call was refused.
        """
        pids = ",".join(map(str, self.pids))
        return load_generator.run_grpc(mode, addr=self.grpc_addr, pids=pids, **flags)

    def anonymous_mb(self) -> float:
        """Return the anonymous memory of all its processes, in MiB."""
        return sum(_status_kb(pid, "RssAnon") for pid in self.pids) / 1024

    def pause(self) -> None:
        """Suspend it while others are measured."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it after `pause`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> float:
        """Terminate all processes, and return the time until the last one ended, in seconds."""
        began = time.monotonic()
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            for process in self.processes:
                process.wait(STOP_SECONDS)
        finally:
            self.kill()
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill all processes that still run."""
        self._signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)


def _status_kb(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def free_ports(offsets: Sequence[int] = (0,)) -> int:
    """Return a port such that the ports at all `offsets` from it are free."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        try:
            for offset in offsets:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except (OSError, OverflowError):
            continue
        return port


def launch(
    server: Server, commands: Sequence[Sequence[str]], home: Path, environ: Mapping[str, str]
) -> Server:
    """Start the commands together, with output files in `home`; return when a send is accepted.

    Raises:
        RuntimeError: no send was accepted within 60 s.
    """
    home.mkdir(parents=True, exist_ok=True)
    began = time.time()
    processes = []
    for number, command in enumerate(commands):
        with (home / f"process-{number}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=home,
                    env=environ,
                )
            )
    server.processes = processes
    kind = "send" if server.dialect == "remoting" else "tcp"
    try:
        report = load_generator.run(
            "wait", kind=kind, addr=server.broker_addr, dur=f"{START_SECONDS}s"
        )
    except BaseException:
        server.kill()
        raise
    server.ready_s = report["at_unix_ms"] / 1000 - began
    return server


def start_kourou(
    home: Path,
    flush: str,
    *,
    name: str = "kourou",
    python: str = sys.executable,
    source: Path | None = None,
    sampler: Sequence[str] = (),
    has_proxy: bool = False,
) -> Server:
    """Start `kourou serve` below `home`, with log files of Java's size.

    Args:
        home: directory for the store and the output.
        flush: the flush mode, `sync` or `async`.
        name: name in the tables.
        python: the interpreter, with its installed packages.
        source: directory of modules to use instead of the installed ones.
        sampler: words of the command line instead of `-m kourou.cli.main`.
        has_proxy: whether it serves gRPC clients too.
    """
    broker, namesrv, console = free_ports(), free_ports(), free_ports()
    command = (
        *(python, *(sampler or ("-m", "kourou.cli.main")), "serve", "--quiet"),
        *("--store", str(home / "store"), "--profile", "prod", "--flush", flush),
        *("--port", str(broker), "--namesrv-port", str(namesrv), "--console-port", str(console)),
        *("--log-level", "warning"),
    )
    grpc = free_ports() if has_proxy else 0
    if has_proxy:
        command += ("--grpc-port", str(grpc))
    elif source is None or (source / "kourou" / "proxy").is_dir():
        command += ("--no-grpc",)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    if source is not None:
        environ["PYTHONPATH"] = str(source)
    server = Server(name, f"127.0.0.1:{broker}", f"127.0.0.1:{namesrv}", ())
    if has_proxy:
        server.grpc_addr = f"127.0.0.1:{grpc}"
    return launch(server, [command], home, environ)


@contextmanager
def kourou(home: Path, *, flush: str = "sync") -> Iterator[Server]:
    """Run `kourou serve` below `home`."""
    server = start_kourou(home, flush)
    try:
        yield server
    finally:
        server.stop()
