"""Test that each broker accepts a log whose expired files the other has removed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from kourou.testing.process import Serving, run_command
from tests.interop.ledger import Ledger
from tests.interop.mqadmin import Mqadmin
from tests.interop.peer import start_java

COUNT = 1000
EXPIRED_SECONDS = 150
"""Timeout of the removal; Java's cleaner first runs a minute after the start."""
SIZES = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=2000\nmaxMessageSize=65536\n"
CLEANING = "cleanResourceInterval=1000\n"


def age(store: Path, count: int) -> list[Path]:
    """Set the file time of the log's oldest `count` files back by four days; return them."""
    files = sorted((store / "commitlog").iterdir())
    assert len(files) > count, "the last file never expires"
    for file in files[:count]:
        at = file.stat().st_mtime - 4 * 86_400
        os.utime(file, (at, at))
    return files[:count]


async def expire(ledger: Ledger, namesrv_addr: str, remove: Callable[[], None]) -> None:
    """Let the broker remove expired files, and wait until messages are deleted."""
    remove()
    gone = 0
    async with asyncio.timeout(EXPIRED_SECONDS):
        while not gone:
            gone = await ledger.forget_expired(namesrv_addr)
    await ledger.assert_stored(namesrv_addr)
    missing = await ledger.find(namesrv_addr, ledger.ids)
    assert missing == []


def test_each_broker_continues_a_log_that_the_other_shortened(jars: str, tmp_path: Path) -> None:
    store, ledger = tmp_path / "store", Ledger("Expiring", words=350)  # compressed from 4 KiB on
    conf = tmp_path / "broker.conf"
    conf.write_text(SIZES + CLEANING)

    def remove(namesrv_addr: str, broker_addr: str) -> Callable[[], None]:
        def run() -> None:
            with Mqadmin(namesrv_addr, tmp_path) as mqadmin:
                printed = mqadmin.run("deleteExpiredCommitLog", "-b", broker_addr)
                assert not printed.is_failure, printed

        return run

    def visit_kourou(*, expires: bool) -> None:
        with Serving.start(store, "--config", str(conf)) as serving:

            async def visit() -> None:
                if expires:
                    await expire(ledger, serving.namesrv, remove(serving.namesrv, serving.broker))
                elif ledger.acknowledged:
                    await ledger.assert_stored(serving.namesrv)
                    assert await ledger.find(serving.namesrv, ledger.ids) == []
                await ledger.send(serving.namesrv, "kourou", COUNT)

            asyncio.run(visit())
            outcome = serving.stop()
        assert outcome.code == 0, outcome.err
        checked = run_command("store", "check", str(store))
        assert checked.code == 0, checked.out + checked.err

    visit_kourou(expires=False)
    old = age(store, 1)
    visit_kourou(expires=True)
    assert not any(file.exists() for file in old)

    java = start_java(jars, tmp_path / "java", store=store, options=SIZES + CLEANING)

    async def visit_java() -> None:
        await ledger.assert_stored(java.namesrv_addr)
        assert await ledger.find(java.namesrv_addr, ledger.ids) == []
        await ledger.send(java.namesrv_addr, "java", COUNT)
        old[:] = age(store, 1)
        delete = remove(java.namesrv_addr, java.broker_addr)
        await expire(ledger, java.namesrv_addr, delete)

    try:
        asyncio.run(visit_java())
    finally:
        java.stop()
    assert not any(file.exists() for file in old)
    visit_kourou(expires=False)
