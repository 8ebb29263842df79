"""Test of a store that moves between Kourou and the Java broker after clean stops and kills."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from kourou import Message, Producer
from kourou.testing.process import Serving, run_command
from tests.interop.clients import Client
from tests.interop.peer import start_java

COUNT = 60
KEYS = {f"key-{number}" for number in range(COUNT)}


async def _send(namesrv_addr: str, topic: str) -> None:
    async with Producer("store-files", namesrv_addr) as producer:
        for number in range(COUNT):
            await producer.send(
                Message(topic, b"kourou-%d" % number, tags="all", keys=[f"key-{number}"])
            )


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_java_reads_and_appends_to_a_kourou_store_and_kourou_continues(
    jars: str, java_client: Client, tmp_path: Path, end: signal.Signals
) -> None:
    store = tmp_path / "store"
    with Serving.start(store) as serving:
        asyncio.run(_send(serving.namesrv, "Moved"))
        serving.stop(end)

    java = start_java(jars, tmp_path / "java", store=store)
    try:
        lines = java_client.run("consume", java.namesrv_addr, "mover", "Moved", "all", COUNT, 0, 60)
        assert ["done", "true"] in lines
        assert {line[1] for line in lines if line[0] == "got"} == KEYS
        sent = java_client.run("produce", java.namesrv_addr, "Moved", 20)
        assert {line[1] for line in sent if line[0] == "sent"} == {"SEND_OK"}
    finally:
        java.stop()

    with Serving.start(store) as serving:
        options = ("--from", "earliest", "--count", str(COUNT + 20), "--json")
        received = run_command("receive", "Moved", *options, "-n", serving.namesrv)
        assert received.code == 0, received.err
        bodies = [str(row["body"]) for row in received.rows]
        assert sum(body.startswith("kourou-") for body in bodies) == COUNT
        assert sum(body.startswith("java-") for body in bodies) == 20
        asyncio.run(_send(serving.namesrv, "Moved"))
        assert serving.stop().code == 0
    checked = run_command("store", "check", str(store))
    assert checked.code == 0, checked.out + checked.err
