"""Measures the memory of idle connections, and the effect of a connection storm on a client.

    python -m bench.connections [--idle N] [--rate N] [--seconds S]

Three kinds of connections are measured: plain; plain on a port that also accepts TLS, which peeks
at the first bytes; and TLS. Each connection sends one request that needs no topic and receives the
answer. A separate process makes the storm, so that its cost does not delay the healthy client,
which shows the latency of the server. Prints for each kind:

    idle    resident memory that each of N open connections adds to the server, in KiB
    storm   connections opened, used and closed per second; the number of failures; the 99th
            percentile of the latency of the healthy client, on its own plain connection
    after   the server's resident memory after the storm, in MiB
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import resource
import ssl
import statistics
import tempfile
import time
from collections.abc import Iterator
from ctypes import Array, c_longlong
from pathlib import Path
from typing import Final, cast

import trustme
import uvloop
from rich.console import Console
from rich.table import Table

from kourou.protocol.command import request
from kourou.protocol.frame import encode_frame
from kourou.testing.process import Serving

UNKNOWN_CODE: Final = 9_999
"""Request code that the dispatcher answers itself, so that only the connection is measured."""

FRAME: Final = encode_frame(request(UNKNOWN_CODE))
HOST: Final = "127.0.0.1"
SOURCES: Final = tuple(f"127.0.0.{last}" for last in range(2, 42))
"""Source addresses. One has too few ports for a storm, because a closed port stays in TIME_WAIT for
a minute."""

ATTEMPT_S: Final = 5.0
SPARE_FDS: Final = 1_000
SPAWNED: Final = multiprocessing.get_context("spawn")


class Client(asyncio.Protocol):
    """One connection that sends requests and awaits the answers."""

    def __init__(self) -> None:
        self.answered = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.request()

    def request(self) -> None:
        """Send the request again."""
        if self.answered.done():
            self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(FRAME)

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            self.answered.set_result(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionError("closed without an answer"))
            self.answered.exception()  # mark as retrieved; an awaiting caller still receives it


class Port:
    """Connects to one server, plain or with TLS."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._tls = tls
        self._count = 0

    async def connect(self) -> Client:
        """Return a connection after its first answer; both must take at most `ATTEMPT_S`."""
        self._count += 1
        source = SOURCES[self._count % len(SOURCES)]
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ATTEMPT_S):
            _, client = await loop.create_connection(
                Client, self._host, self._port, ssl=self._tls, local_addr=(source, 0)
            )
            await client.answered
        return client


async def idle(port: Port, pid: int, count: int) -> float:
    """Return the KiB that each of `count` open connections adds to process `pid`."""
    first = [await port.connect() for _ in range(50)]  # exclude one-time allocations
    before = _resident_kib(pid)
    clients: list[Client] = []
    for _ in range(count // 50):
        clients += await asyncio.gather(*(port.connect() for _ in range(50)))
    after = _resident_kib(pid)
    for client in first + clients:
        client.transport.abort()
    return (after - before) / len(clients)


async def storm(port: Port, rate: int, seconds: int) -> tuple[int, int]:
    """Return the number of connections opened, used and closed, and the number of failures."""
    loop = asyncio.get_running_loop()
    failed = done = 0

    async def attempt() -> None:
        nonlocal failed, done
        try:
            (await port.connect()).transport.close()
            done += 1
        except (OSError, TimeoutError):
            failed += 1

    began_s = loop.time()
    started = 0
    async with asyncio.TaskGroup() as attempts:
        while (elapsed_s := loop.time() - began_s) < seconds:
            due = int(elapsed_s * rate)
            while started < due:
                attempts.create_task(attempt())
                started += 1
            await asyncio.sleep(0.005)
    return done, failed


def run_storm(
    address: str, root: Path | None, rate: int, seconds: int, counts: Array[c_longlong]
) -> None:
    """Run a storm in this process, and write the result of `storm` into `counts`.

    `root` is the root certificate of a TLS server, None for plain connections.
    """
    context = None if root is None else ssl.create_default_context(cafile=str(root))
    counts[:] = list(uvloop.run(storm(Port(address, context), rate, seconds)))


async def measure_storm(
    address: str, root: Path | None, rate: int, seconds: int
) -> tuple[float, int, float]:
    """Return connections per second, failures, and the p99 latency of a healthy client in ms."""
    counts = SPAWNED.RawArray(c_longlong, 2)
    process = SPAWNED.Process(
        target=run_storm, args=(address, root, rate, seconds, counts), daemon=True
    )
    healthy = await Port(address, None).connect()
    waits: list[float] = []
    process.start()
    began_s = time.perf_counter()
    while process.is_alive():
        sent_s = time.perf_counter()  # the loop's clock has a resolution of milliseconds
        healthy.request()
        await healthy.answered
        waits.append(time.perf_counter() - sent_s)
        await asyncio.sleep(0.01)
    took_s = time.perf_counter() - began_s
    assert process.exitcode == 0, "the storm failed"
    healthy.transport.abort()
    done, failed = counts
    return done / took_s, failed, statistics.quantiles(waits, n=100)[98] * 1000


def _resident_kib(pid: int) -> int:
    """Return the anonymous resident memory of a process, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("the kernel reports no RssAnon")


@contextlib.contextmanager
def _served(home: Path, *, with_tls: bool) -> Iterator[tuple[Serving, Path]]:
    """Run a server; yield it with the root certificate for its TLS clients."""
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST)
    home.mkdir()
    leaf.private_key_pem.write_to_path(str(home / "server.key"))
    leaf.cert_chain_pems[0].write_to_path(str(home / "server.crt"))
    config = home / "broker.conf"
    lines = ["connectionsMax=20000"]
    if with_tls:
        lines += [f"tls.server.keyPath={home}/server.key", f"tls.server.certPath={home}/server.crt"]
    config.write_text("\n".join(lines))
    root = home / "root.crt"
    authority.cert_pem.write_to_path(str(root))
    options = ("--config", str(config), "--log-level", "error")
    with Serving.start(home / "store", *options) as serving:
        yield serving, root


def main() -> None:
    """Measure each kind of connection, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--idle", type=int, default=5_000)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=int, default=30)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server inherits it
    if hard != resource.RLIM_INFINITY and hard < arguments.idle + SPARE_FDS:
        parser.error(f"{arguments.idle} connections need more than {hard} open files")
    table = Table(title=f"{arguments.idle} idle; {arguments.rate}/s for {arguments.seconds} s")
    columns = ("port", "idle, KiB each", "storm, /s", "failed", "healthy p99, ms", "after, MiB")
    for column in columns:
        table.add_column(column, justify="left" if column == "port" else "right")
    for name, port_has_tls, client_has_tls in (
        ("plain", False, False),
        ("plain, on a TLS port", True, False),
        ("TLS", True, True),
    ):
        with (
            tempfile.TemporaryDirectory() as directory,
            _served(Path(directory) / "server", with_tls=port_has_tls) as (serving, certificate),
        ):
            root = certificate if client_has_tls else None
            context = None if root is None else ssl.create_default_context(cafile=str(root))
            pid = serving.process.pid
            kib = uvloop.run(idle(Port(serving.broker, context), pid, arguments.idle))
            per_s, failed, p99_ms = uvloop.run(
                measure_storm(serving.broker, root, arguments.rate, arguments.seconds)
            )
            after_mib = _resident_kib(pid) / 1024
        table.add_row(
            name, f"{kib:.1f}", f"{per_s:,.0f}", str(failed), f"{p99_ms:.1f}", f"{after_mib:.0f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
