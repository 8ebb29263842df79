"""Test of timer files that move between Java and Kourou, with stops and kills.

With `timerWheelSnapshotFlush`, Java keeps its wheel in memory and writes snapshots of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from pathlib import Path

import pytest

from kourou import Message, Producer
from kourou.testing.process import Serving, run_command
from tests.interop.ledger import make_topics, read_all
from tests.interop.peer import start_java

TOPIC = "Timed"
WAITS_MS = (1_500, 2_500, 4_000, 7_000, 9_500, 13_000, 15_750)
EACH = 8
EARLY_MS = 1_100
"""Maximum early delivery: Java stores whole seconds, and rounds full seconds down by one."""
PATIENCE_S = 60
FLUSHED_S = 2.5
"""Time after which each broker has persisted its wheel or a snapshot."""
SNAPSHOTS = "timerWheelSnapshotFlush=true\ntimerWheelSnapshotIntervalMs=1000\n"
RECALLS = "recallMessageEnable=true\n"


class Timed:
    """The scheduled messages sent to both brokers, and the delivered ones."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._due_ms: dict[str, int] = {}
        self._far: dict[str, str] = {}

    async def send(self, namesrv_addr: str) -> None:
        """Schedule messages, some of them far in the future, and recall one."""
        async with Producer("timing", namesrv_addr) as producer:
            now_ms = int(time.time() * 1_000)  # noqa: TID251 - brokers have real time
            for wait_ms in WAITS_MS * EACH:
                key = f"k{next(self._numbers)}"
                self._due_ms[key] = now_ms + wait_ms
                message = Message(TOPIC, b"x", keys=[key], deliver_at_ms=now_ms + wait_ms)
                await producer.send(message, timeout_ms=15_000)
            for _ in range(EACH):
                message = Message(TOPIC, b"far", keys=["far"], delay_ms=86_400_000 * 2 + 3_600_000)
                receipt = await producer.send(message, timeout_ms=15_000)
                assert receipt.recall_handle
                self._far[receipt.recall_handle] = receipt.msg_id
            message = Message(TOPIC, b"no", keys=["no"], deliver_at_ms=now_ms + 14_000)
            receipt = await producer.send(message, timeout_ms=15_000)
            await producer.recall(TOPIC, receipt.recall_handle or "", timeout_ms=15_000)
        await asyncio.sleep(FLUSHED_S)

    async def take(self, namesrv_addr: str, *, is_exact: bool) -> None:
        """Wait until another broker has delivered all messages that are due."""
        missing = set(self._due_ms)
        async with asyncio.timeout(PATIENCE_S):
            while missing:
                came = await read_all(namesrv_addr, TOPIC)
                missing = set(self._due_ms) - {message.keys[0] for message in came}
                await asyncio.sleep(0.2)
        await asyncio.sleep(1)  # for duplicates and early deliveries
        came = await read_all(namesrv_addr, TOPIC)
        counts = Counter(message.keys[0] for message in came)
        assert set(counts) == set(self._due_ms)
        if is_exact:
            assert set(counts.values()) == {1}
        for message in came:
            early_ms = self._due_ms[message.keys[0]] - message.store_at_ms
            assert early_ms <= EARLY_MS, f"{message.keys[0]} came {early_ms} ms early"

    @property
    def far_count(self) -> int:
        """The number of messages scheduled in two days."""
        return len(self._far)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("options", ["", SNAPSHOTS], ids=["wheel", "snapshots"])
def test_timers_move_from_java_to_kourou_and_back(
    jars: str, tmp_path: Path, options: str, is_killed: bool
) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(f"{RECALLS}{options}")
    timed = Timed()

    java = start_java(jars, tmp_path / "java", store=store, options=f"{RECALLS}{options}")
    try:
        asyncio.run(make_topics(java.namesrv_addr, TOPIC))
        asyncio.run(timed.send(java.namesrv_addr))
        if is_killed:
            java.kill()
    finally:
        java.stop()
    snapshots = [path.name for path in store.glob("timerwheel.*")]
    assert bool(snapshots) == bool(options)
    checked = run_command("store", "check", str(store), "--json")
    found = [one for one in json.loads(checked.out)["findings"] if "timer" in one["file"]]
    assert is_killed or found == []

    with Serving.start(store, "--config", str(conf), "--no-console") as serving:
        # Java's deliveries before the kill are in the log, so nothing is delivered twice.
        asyncio.run(timed.take(serving.namesrv, is_exact=True))
        asyncio.run(timed.send(serving.namesrv))
        if is_killed:
            serving.process.kill()
        outcome = serving.stop()
    assert is_killed or outcome.code == 0, outcome.err
    assert not list(store.glob("timerwheel.*")), "Java would take an old one for the newest"
    if not is_killed:
        reported = json.loads(run_command("store", "info", str(store), "--json").out)["timers"]
        assert reported["waiting"] >= timed.far_count
        checked = run_command("store", "check", str(store))
        assert checked.code == 0, checked.out + checked.err

    java = start_java(jars, tmp_path / "java", store=store, options=f"{RECALLS}{options}")
    try:
        asyncio.run(timed.take(java.namesrv_addr, is_exact=not is_killed))
    finally:
        java.stop()
