"""Tests that each broker finds messages by the key index that the other wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kourou.testing.process import Serving, run_command
from tests.interop.ledger import Ledger
from tests.interop.peer import start_java

COUNT = 120


def test_each_broker_uses_the_index_that_the_other_wrote(jars: str, tmp_path: Path) -> None:
    store, ledger = tmp_path / "store", Ledger("Indexed")
    visit_kourou(ledger, store)
    (index,) = (store / "index").iterdir()

    async def visit_java(namesrv_addr: str) -> None:
        await ledger.assert_stored(namesrv_addr)
        assert await ledger.find(namesrv_addr, ledger.ids) == []
        await ledger.send(namesrv_addr, "java", COUNT)

    java = start_java(jars, tmp_path / "java", store=store)
    try:
        asyncio.run(visit_java(java.namesrv_addr))
    finally:
        java.stop()
    assert list((store / "index").iterdir()) == [index], "Java goes on in Kourou's file"

    assert "index" not in visit_kourou(ledger, store), "nothing had to be made again"
    assert list((store / "index").iterdir()) == [index]


def test_index_that_java_changed_with_other_sizes_is_rebuilt(jars: str, tmp_path: Path) -> None:
    store, ledger = tmp_path / "store", Ledger("Indexed")
    visit_kourou(ledger, store)

    options = "maxHashSlotNum=5000000\nmaxIndexNum=20000000\n"
    java = start_java(jars, tmp_path / "java", store=store, options=options)
    try:
        asyncio.run(ledger.send(java.namesrv_addr, "java", COUNT))
    finally:
        java.stop()

    assert "index" in visit_kourou(ledger, store), "that is said"
    visit_kourou(ledger, store)


def visit_kourou(ledger: Ledger, store: Path) -> str:
    """Query all messages, send more, stop, and check the store; return the log output."""
    with Serving.start(store) as serving:

        async def visit() -> None:
            assert await ledger.find(serving.namesrv, ledger.ids) == []
            await ledger.send(serving.namesrv, "kourou", COUNT)

        asyncio.run(visit())
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err
    checked = run_command("store", "check", str(store))
    assert checked.code == 0, checked.out + checked.err
    return outcome.err


@pytest.mark.parametrize("first", ["kourou", "java"])
def test_after_kills_kourou_finds_all_messages_and_java_those_it_indexed(
    jars: str, tmp_path: Path, first: str
) -> None:
    store, ledger = tmp_path / "store", Ledger("Indexed")

    def kourou() -> None:
        with Serving.start(store) as serving:

            async def visit() -> None:
                assert await ledger.find(serving.namesrv, ledger.ids) == []
                end = serving.process.kill
                await ledger.send_until(serving.namesrv, "kourou", COUNT, end)

            asyncio.run(visit())

    if first == "kourou":
        kourou()
    java = start_java(jars, tmp_path / "java", store=store)

    async def visit() -> None:
        # After a kill, Java removes its incomplete index file and rebuilds it from the checkpoint.
        await ledger.send(java.namesrv_addr, "java", COUNT)
        theirs = [key for key in ledger.ids if key.startswith("java")]
        assert await ledger.find(java.namesrv_addr, theirs) == []
        await ledger.send_until(java.namesrv_addr, "java", COUNT, java.kill)

    try:
        asyncio.run(visit())
    finally:
        java.stop()
    kourou()
    kourou()
    visit_kourou(ledger, store)
