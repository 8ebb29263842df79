"""Tests of the official 5.x clients with `kourou serve`: Java, Go and Node, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kourou import SimpleConsumer
from kourou.testing.process import Serving, run_command
from tests.interop.clients import Client, grpc_clients

CONFIG = """
transactionTimeOut=1500
transactionCheckInterval=1000
"""
TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION"}
WAYS = [("java", "plain"), ("java", "tls"), ("go", "plain"), ("go", "tls"), ("node", "plain")]


@pytest.fixture(scope="module")
def programs() -> dict[str, Client]:
    return grpc_clients()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("grpc")
    config = directory / "broker.conf"
    config.write_text(CONFIG)
    options = ("--config", str(config), "--no-console")
    with Serving.start(directory / "store", *options, grpc=True) as serving:
        for topic, kind in TOPICS.items():
            attribute = f"message.type={kind}"
            created = run_command(
                *("topic", "create", topic, "--attribute", attribute, "--queues", "4"),
                *("--namesrv", serving.namesrv),
            )
            assert created.code == 0, created.err
        yield serving


def run(client: Client, serving: Serving, way: str, group: str) -> dict[str, list[str]]:
    """Run a client's program; return the bodies that it printed, by what it did with them."""
    lines = client.run(str(serving.ready["grpc"]), way, group)
    return {line[0]: line[1].split(",") for line in lines if len(line) > 1}


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_client_receives_what_it_sends(
    name: str, way: str, programs: dict[str, Client], serving: Serving
) -> None:
    done = run(programs[name], serving, way, f"{name}-{way}")

    if name == "java":
        assert done["received"] == ["committed", "delayed", "orphaned"]
        sent = [f"{kind}-{number}" for kind in ("fifo", "normal") for number in range(8)]
        assert done["pushed"] == sent
        assert done["checked"] == ["orphaned"]
    else:
        assert done["received"] == [f"{name}-{number}" for number in range(8)]


def test_remoting_consumer_receives_what_a_grpc_client_sends(
    programs: dict[str, Client], serving: Serving
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
