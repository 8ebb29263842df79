"""Tests of batch consume queues: each broker reads batches that the other stored as one record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou import AdminClient
from kourou.testing.process import Serving, run_command
from tests.interop.clients import Client
from tests.interop.ledger import Ledger
from tests.interop.peer import start_java

TOPIC = "Batches"
BATCHES, SIZE = 20, 7


async def visit(ledger: Ledger, namesrv_addr: str, origin: str, end: Callable[[], object]) -> None:
    """Check all messages, send batches and single messages, check again, and end the broker."""
    if ledger.acknowledged:
        await ledger.assert_stored(namesrv_addr)
    else:
        async with AdminClient(namesrv_addr) as admin:
            await admin.create_topic(TOPIC, queues=2, attributes={"queue.type": "BatchCQ"})
    await ledger.send_batches(namesrv_addr, origin, BATCHES, SIZE)
    await ledger.send(namesrv_addr, origin, BATCHES)
    await ledger.assert_stored(namesrv_addr)
    await asyncio.to_thread(end)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_batches_keep_their_positions_on_both_brokers(
    jars: str, java_client: Client, tmp_path: Path, *, is_killed: bool
) -> None:
    store, ledger = tmp_path / "store", Ledger(TOPIC)

    def visit_kourou() -> None:
        with Serving.start(store) as serving:
            end = serving.process.kill if is_killed else lambda: None
            asyncio.run(visit(ledger, serving.namesrv, "kourou", end))
            outcome = serving.stop()
        assert is_killed or outcome.code == 0, outcome.err

    visit_kourou()
    java = start_java(jars, tmp_path / "java", store=store)
    try:
        count = len(ledger.acknowledged)
        lines = java_client.run("pull", java.namesrv_addr, "batches", TOPIC, count, 60)
        assert {line[1] for line in lines if line[0] == "got"} == set(ledger.ids)
        end = java.kill if is_killed else lambda: None
        asyncio.run(visit(ledger, java.namesrv_addr, "java", end))
    finally:
        java.stop()
    visit_kourou()

    with Serving.start(store) as serving:
        asyncio.run(ledger.assert_stored(serving.namesrv))
        assert serving.stop().code == 0
    assert (store / "batchconsumequeue" / TOPIC).is_dir()
    assert not (store / "consumequeue" / TOPIC).exists()
    checked = run_command("store", "check", str(store))
    assert checked.code == 0, checked.out + checked.err
