"""Tests of the official 5.x clients over gRPC: Java, Go, Node, Rust and Python.

They use `kourou serve`, and `kourou serve proxy` before Kourou and before the Java broker.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kourou import (
    AdminClient,
    Message,
    Producer,
    ProducerConfig,
    SimpleConsumer,
    SubscriptionGroup,
)
from kourou.blocking import AdminClient as BlockingAdminClient
from kourou.protocol.compression import CompressionType
from kourou.testing.process import Serving
from tests.interop.clients import CACHE, Client
from tests.interop.peer import JavaServer, start_java

CONFIG = """
enablePropertyFilter=true
transactionTimeOut=1500
transactionCheckInterval=1000
"""
JAVA_CONFIG = """
transactionOpBatchInterval=200
recallMessageEnable=true
"""
"""Java writes the ends of transactions in batches, and checks what is not written yet."""
TOPICS = {
    "normal": "NORMAL",
    "fifo": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
    "orphans": "TRANSACTION",
    "priority": "PRIORITY",
    "empty": "NORMAL",
}
CLIENTS = ("java", "go", "node", "rust", "python")
WAYS = [(name, way) for name in CLIENTS for way in ("plain", "tls")]
ROOTS = {
    "rust": "SSL_CERT_FILE",
    "node": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "python": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
}
"""Environment variables of the clients that verify the server's certificate."""
ONE_SECOND = {
    "type": "EXPONENTIAL",  # the Node client knows no other
    "exponentialRetryPolicy": {"initial": 1_000, "max": 1_000, "multiplier": 1},
}
CUSTOMIZED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}
"""The same for the Python client, which knows no exponential policy."""
FEATURES = {
    "prioritized": ["3", "2", "1"],
    "tagged": [f"normal-{number}" for number in (0, 2, 4, 6)],
    "filtered": [f"normal-{number}" for number in (4, 5, 6, 7)],
    "pushed": [f"normal-{number}" for number in range(8)],
    "ordered": [f"fifo-{number}" for number in range(8)],
    "delayed": ["delayed"],
    "received": ["committed", "orphaned"],
    "checked": ["orphaned"],
    "again": ["1", "2"],
    "dead": ["1", "2", "dead"],
    "strict": ["1", "2", "strict"],
}
"""What programs print for each feature, whose functions have the names.

A recalled and a rolled-back message are missing. `again` has the numbers of a message's deliveries,
the last long before the end of its invisible time. `dead` and `strict` have those of a message of a
group and of an ordered group, and the dead letter that it became.
"""
MISSING = {"rust": {"prioritized", "pushed", "again", "strict"}}
"""Features that clients lack.

Rust 5.0.0 has no priorities, no push consumer and no change of invisible times.
"""
OTHER = {"python": {"strict": ["1", "1", "strict"]}}
"""The Python client itself delivers messages of an ordered group again, and does not count that."""
POLL_S = range(19, 30)
"""How long a receive of the Rust client without messages takes: the proxy allows 20 s."""


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
        server = start_java(jars, directory / "java", options=f"{CONFIG}{JAVA_CONFIG}")
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
        with BlockingAdminClient(namesrv) as admin:
            for topic, kind in TOPICS.items():
                admin.create_topic(topic, queues=4, attributes={"message.type": kind})
            for group in groups():
                admin.create_group(group)
        if request.param == "local":
            assert isinstance(server, Serving)
            yield Served(namesrv, server.grpc)
            return
        with Serving.start_proxy(namesrv, directory / "home") as proxy:
            yield Served(namesrv, proxy.grpc)


def groups() -> Iterator[SubscriptionGroup]:
    """Yield the groups with settings of their own: ordered ones, and those with dead letters."""
    for name, way in WAYS:
        run_name = f"{name}-{way}"
        yield SubscriptionGroup(f"{run_name}-ordered", consume_message_orderly=True)
        for suffix in ("dead", "strict"):
            yield SubscriptionGroup(
                f"{run_name}-{suffix}",
                consume_message_orderly=suffix == "strict",
                retry_max_times=1,
                group_retry_policy=CUSTOMIZED if name == "python" else ONE_SECOND,
            )


def run(client: Client, serving: Served, way: str, group: str, *mode: str) -> dict[str, list[str]]:
    """Run a client's program; return the bodies that it printed, by what it did with them."""
    lines = client.run(serving.grpc, way, group, *mode)
    return {line[0]: line[1].split(",") for line in lines if len(line) > 1}


def trust(
    name: str, way: str, serving: Served, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a client that verifies certificates trust the server's."""
    if way == "tls" and name in ROOTS:
        host, _, port = serving.grpc.rpartition(":")
        (directory / "server.crt").write_text(ssl.get_server_certificate((host, int(port))))
        monkeypatch.setenv(ROOTS[name], str(directory / "server.crt"))


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_client_receives_what_it_sends(
    name: str,
    way: str,
    programs: dict[str, Client],
    serving: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trust(name, way, serving, tmp_path, monkeypatch)

    done = run(programs[name], serving, way, f"{name}-{way}")

    if name == "rust":
        assert int(done.pop("polled")[0]) in POLL_S
    expected = FEATURES | OTHER.get(name, {})
    for feature in MISSING.get(name, ()):
        del expected[feature]
    assert done == expected


@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, "plain") for name in CLIENTS), ("python", "tls")],
)
def test_grpc_and_remoting_members_receive_what_each_other_sends(
    name: str,
    way: str,
    programs: dict[str, Client],
    serving: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trust(name, way, serving, tmp_path, monkeypatch)
    topic = f"mixed-{name}-{way}"
    compressed = {codec: f"{codec.name}-{'kourou' * 2_000}" for codec in CompressionType}
    own = [f"group-{topic}/{name}-{number}" for number in range(4)]
    bodies = sorted([*compressed.values(), *own])

    async def main() -> None:
        async with AdminClient(serving.namesrv) as admin:
            await admin.create_topic(topic, queues=4, attributes={"message.type": "NORMAL"})
        async with SimpleConsumer(f"remoting-{topic}", serving.namesrv) as consumer:
            consumer.subscribe(topic)
            await consumer.receive(wait_ms=0)  # the group begins at the end of each queue
            for codec, body in compressed.items():
                config = ProducerConfig(compress_type=codec)
                async with Producer(
                    f"{codec.name}-group", serving.namesrv, config=config
                ) as sender:
                    await sender.send(Message(topic, body.encode()))
            printed = await asyncio.to_thread(
                programs[name].text, serving.grpc, way, f"group-{topic}", "exchange", topic, 7
            )
            seen: set[str] = set()
            async with asyncio.timeout(60):
                while len(seen) < len(bodies):
                    for message in await consumer.receive(invisible_ms=30_000):
                        seen.add(message.body.decode())
                        await consumer.ack(message)
            assert printed == f"exchanged {','.join(bodies)}\n"
            assert sorted(seen) == bodies

    asyncio.run(main())


@pytest.mark.parametrize("name", CLIENTS)
def test_transaction_of_a_killed_producer_is_checked_by_another_one(
    name: str, programs: dict[str, Client], serving: Served
) -> None:
    client, run_name = programs[name], f"heir-{name}"
    arguments = (serving.grpc, "plain", run_name, "orphan", "orphans")
    with subprocess.Popen(
        [*client.command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=CACHE,
    ) as producer:
        try:
            assert producer.stdout is not None
            assert producer.stdout.readline() == "sent\n"
        finally:
            producer.kill()

    ended = run(client, serving, "plain", run_name, "check", "orphans")

    assert ended == {"received": ["orphan"], "checked": ["orphan"]}
