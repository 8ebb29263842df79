"""Test of a store that moves between Kourou and the Java broker several times.

Each broker stops, or is killed during sends. Acknowledged messages keep their positions in all
later visits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kourou.testing.process import Serving, run_command
from tests.interop.ledger import Ledger
from tests.interop.peer import JavaServer, start_java

TOPIC = "Relay"
COUNT = 200


@contextmanager
def java_on(jars: str, home: Path, store: Path, options: str = "") -> Iterator[JavaServer]:
    """Serve the store with Java's broker."""
    java = start_java(jars, home, store=store, options=options)
    try:
        yield java
    finally:
        java.stop()


def visit_kourou(ledger: Ledger, store: Path, *, is_killed: bool) -> None:
    """Check all messages, send more, and stop or be killed."""
    with Serving.start(store) as serving:

        async def visit() -> None:
            if ledger.acknowledged:
                await ledger.assert_stored(serving.namesrv)
            if is_killed:
                end = serving.process.kill
                await ledger.send_until(serving.namesrv, "kourou", COUNT, end)
            else:
                await ledger.send(serving.namesrv, "kourou", COUNT)

        asyncio.run(visit())
        outcome = serving.stop()
    assert is_killed or outcome.code == 0, outcome.err
    assert "config_file.restored" not in outcome.err


def visit_java(ledger: Ledger, jars: str, home: Path, store: Path, *, is_killed: bool) -> None:
    """Do the same with Java's broker."""
    with java_on(jars, home, store) as java:

        async def visit() -> None:
            if ledger.acknowledged:
                await ledger.assert_stored(java.namesrv_addr)
            if is_killed:
                await ledger.send_until(java.namesrv_addr, "java", COUNT, java.kill)
            else:
                await ledger.send(java.namesrv_addr, "java", COUNT)

        asyncio.run(visit())


@pytest.mark.parametrize(
    ("first", "killed"),
    [("kourou", ""), ("kourou", "java"), ("java", "kourou"), ("java", "kourou and java")],
    ids=lambda value: value or "none",
)
def test_store_moves_several_times_without_losses(
    jars: str, tmp_path: Path, first: str, killed: str
) -> None:
    kourou_killed, java_killed = "kourou" in killed, "java" in killed
    store, ledger = tmp_path / "store", Ledger(TOPIC)
    if first == "kourou":
        visit_kourou(ledger, store, is_killed=kourou_killed)
    visit_java(ledger, jars, tmp_path / "java", store, is_killed=java_killed)
    visit_kourou(ledger, store, is_killed=kourou_killed)
    visit_java(ledger, jars, tmp_path / "java", store, is_killed=java_killed)
    visit_kourou(ledger, store, is_killed=False)

    checked = run_command("store", "check", str(store))
    assert checked.code == 0, checked.out + checked.err
