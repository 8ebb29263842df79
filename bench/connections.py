"""What does an idle connection cost, and does a storm of connections hurt the others?

    python -m bench.connections [--idle N] [--rate N] [--seconds S]

Three ports are asked: plain; plain clients of a port that also takes TLS, which looks at the first
bytes of each; and TLS clients. Each connection sends one request that needs no topic and gets its
answer. Prints, for each port:

    idle    resident memory that each of N open connections adds to the server, in KiB
    storm   connections made, used and closed a second; how many failed; the longest wait of a
            healthy client that asks all the time on a connection of its own
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import ssl
import statistics
import tempfile
from collections.abc import Iterator
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
"""Answered by the dispatcher itself: what is measured is the connection."""

FRAME: Final = encode_frame(request(UNKNOWN_CODE))
HOST: Final = "127.0.0.1"
SOURCES: Final = tuple(f"127.0.0.{last}" for last in range(2, 42))
"""Addresses to connect from: one has too few ports for a storm, each of which rests a minute."""

ATTEMPT_S: Final = 5.0
SPARE_FDS: Final = 1_000


class Client(asyncio.Protocol):
    """One connection that asks and is answered."""

    def __init__(self) -> None:
        self.answered = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.ask()

    def ask(self) -> None:
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
            self.answered.exception()  # whoever waits still gets it


class Port:
    """Connects to one server in one way."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._tls = tls
        self._made = 0

    async def connect(self) -> Client:
        """Return a connection that was answered once, within `ATTEMPT_S`."""
        self._made += 1
        source = SOURCES[self._made % len(SOURCES)]
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ATTEMPT_S):
            _, client = await loop.create_connection(
                Client, self._host, self._port, ssl=self._tls, local_addr=(source, 0)
            )
            await client.answered
        return client


async def idle(port: Port, pid: int, count: int) -> float:
    """Return the KiB that each of `count` open connections adds to process `pid`."""
    first = [await port.connect() for _ in range(50)]  # what is made once is made now
    before = _resident_kib(pid)
    clients: list[Client] = []
    for _ in range(count // 50):
        clients += await asyncio.gather(*(port.connect() for _ in range(50)))
    after = _resident_kib(pid)
    for client in first + clients:
        client.transport.abort()
    return (after - before) / len(clients)


async def storm(port: Port, rate: int, seconds: int) -> tuple[float, int, float]:
    """Return connections a second, failures, and a healthy client's longest wait in ms."""
    loop = asyncio.get_running_loop()
    healthy = await port.connect()
    waits: list[float] = []
    failed = done = 0

    async def attempt() -> None:
        nonlocal failed, done
        try:
            (await port.connect()).transport.close()
            done += 1
        except (OSError, TimeoutError):
            failed += 1

    async def probe() -> None:
        while True:
            began_s = loop.time()
            healthy.ask()
            await healthy.answered
            waits.append(loop.time() - began_s)
            await asyncio.sleep(0.01)

    probing = asyncio.create_task(probe())
    began_s = loop.time()
    started = 0
    async with asyncio.TaskGroup() as attempts:
        while (elapsed_s := loop.time() - began_s) < seconds:
            due = int(elapsed_s * rate)
            while started < due:
                attempts.create_task(attempt())
                started += 1
            await asyncio.sleep(0.005)
    took_s = loop.time() - began_s
    probing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await probing
    healthy.transport.abort()
    p99 = statistics.quantiles(waits, n=100)[98] if len(waits) > 1 else waits[0]
    return done / took_s, failed, p99 * 1000


def _resident_kib(pid: int) -> int:
    """Return the anonymous resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("the kernel tells no RssAnon")


@contextlib.contextmanager
def _served(home: Path, *, with_tls: bool) -> Iterator[tuple[Serving, ssl.SSLContext]]:
    """Run a server, and return what its TLS clients need."""
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
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with Serving.start(home / "store", "--config", str(config)) as serving:
        yield serving, context


def main() -> None:
    """Measure each port and print the table."""
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
            _served(Path(directory) / "server", with_tls=port_has_tls) as (serving, context),
        ):
            port = Port(serving.broker, context if client_has_tls else None)
            pid = serving.process.pid
            kib = uvloop.run(idle(port, pid, arguments.idle))
            per_s, failed, p99_ms = uvloop.run(storm(port, arguments.rate, arguments.seconds))
            after_mib = _resident_kib(pid) / 1024
        table.add_row(
            name, f"{kib:.1f}", f"{per_s:,.0f}", str(failed), f"{p99_ms:.1f}", f"{after_mib:.0f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
