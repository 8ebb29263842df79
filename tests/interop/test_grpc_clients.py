"""Tests of the official 5.x clients over gRPC: Java, Go, Node, Rust and Python.

They use `kourou serve`, and `kourou serve proxy` before Kourou and before the Java broker.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kourou import SimpleConsumer
from kourou.testing.process import Serving, run_command
from tests.interop.clients import Client, grpc_clients
from tests.interop.peer import JavaServer, start_java
from tests.proxy.test_official_client import PUSH, run_program

CONFIG = """
enablePropertyFilter=true
transactionTimeOut=1500
transactionCheckInterval=1000
"""
ENDS = "transactionOpBatchInterval=200"
"""Java writes the ends of transactions in batches, and checks what is not written yet."""
TOPICS = {
    "pushed": "NORMAL",
    "normal": "NORMAL",
    "fifo": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
    "empty": "NORMAL",
}
ORDERED = ("rust-plain-ordered", "rust-tls-ordered")
"""Groups that consume in order."""
WAYS = [
    *((name, way) for name in ("java", "go", "rust") for way in ("plain", "tls")),
    ("node", "plain"),
]
POLL_S = range(19, 30)
"""How long a receive of the Rust client without messages takes: the proxy allows 20 s."""


@pytest.fixture(scope="module")
def programs() -> dict[str, Client]:
    return grpc_clients()


@dataclass(frozen=True)
class Served:
    """Addresses of servers.

    Attributes:
        namesrv: of the name server.
        grpc: for gRPC clients.
    """

    namesrv: str
    grpc: str


@contextmanager
def broker(mode: str, jars: str, directory: Path) -> Iterator[Serving | JavaServer]:
    """Run the broker of a mode."""
    if mode == "java":
        server = start_java(jars, directory / "java", options=f"{CONFIG}{ENDS}")
        try:
            yield server
        finally:
            server.stop()
        return
    config = directory / "broker.conf"
    config.write_text(CONFIG)
    options = ("--config", str(config), "--no-console")
    with Serving.start(directory / "store", *options, grpc=mode == "local") as serving:
        yield serving


@pytest.fixture(scope="module", params=["local", "cluster", "java"])
def serving(
    request: pytest.FixtureRequest, jars: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Return Kourou's broker with its gRPC port, or a proxy before Kourou's or Java's broker."""
    directory = tmp_path_factory.mktemp("grpc")
    with broker(request.param, jars, directory) as server:
        namesrv = server.namesrv_addr if isinstance(server, JavaServer) else server.namesrv
        for topic, kind in TOPICS.items():
            attribute = f"message.type={kind}"
            created = run_command(
                *("topic", "create", topic, "--attribute", attribute, "--queues", "4"),
                *("--namesrv", namesrv),
            )
            assert created.code == 0, created.err
        for group in ORDERED:
            created = run_command("group", "create", group, "--order", "--namesrv", namesrv)
            assert created.code == 0, created.err
        if request.param == "local":
            assert isinstance(server, Serving)
            yield Served(namesrv, server.grpc)
            return
        with Serving.start_proxy(namesrv, directory / "home") as proxy:
            yield Served(namesrv, proxy.grpc)


def run(client: Client, serving: Served, way: str, group: str) -> dict[str, list[str]]:
    """Run a client's program; return the bodies that it printed, by what it did with them."""
    lines = client.run(serving.grpc, way, group)
    return {line[0]: line[1].split(",") for line in lines if len(line) > 1}


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_client_receives_what_it_sends(
    name: str,
    way: str,
    programs: dict[str, Client],
    serving: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (name, way) == ("rust", "tls"):  # this client verifies the certificate
        host, _, port = serving.grpc.rpartition(":")
        (tmp_path / "server.crt").write_text(ssl.get_server_certificate((host, int(port))))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.crt"))

    done = run(programs[name], serving, way, f"{name}-{way}")

    if name == "java":
        assert done["received"] == ["committed", "delayed", "orphaned"]
        sent = [f"{kind}-{number}" for kind in ("fifo", "normal") for number in range(8)]
        assert done["pushed"] == sent
        assert done["checked"] == ["orphaned"]
    elif name == "rust":
        assert done["received"] == ["committed", "orphaned"]
        assert done["checked"] == ["orphaned"]
        assert done["tagged"] == [f"normal-{number}" for number in (0, 2, 4, 6)]
        assert done["filtered"] == [f"normal-{number}" for number in (4, 5, 6, 7)]
        assert done["ordered"] == [f"fifo-{number}" for number in range(8)]
        assert done["delayed"] == ["delayed"]
        assert int(done["polled"][0]) in POLL_S
    else:
        assert done["received"] == [f"{name}-{number}" for number in range(8)]


def test_remoting_consumer_receives_what_a_grpc_client_sends(
    programs: dict[str, Client], serving: Served
) -> None:
    async def main() -> None:
        async with SimpleConsumer("remoting", serving.namesrv) as consumer:
            consumer.subscribe("normal", "go")
            await consumer.receive(wait_ms=0)  # the group begins at the end of each queue
            await asyncio.to_thread(run, programs["go"], serving, "plain", "grpc")
            seen: set[bytes] = set()
            async with asyncio.timeout(60):
                while len(seen) < 8:
                    for message in await consumer.receive(invisible_ms=30_000):
                        if message.body.startswith(b"grpc/"):
                            seen.add(message.body)
                        assert message.keys == ["key"]
                        await consumer.ack(message)
            assert seen == {b"grpc/go-%d" % number for number in range(8)}

    asyncio.run(main())


def test_python_client_receives_each_message_and_a_failed_one_again(
    serving: Served, tmp_path: Path
) -> None:
    printed = run_program(PUSH, serving.grpc, tmp_path)

    expected = [(str(number), 1) for number in range(8)]
    assert printed == f"{sorted([*expected, ('2', 2)])}\n"
