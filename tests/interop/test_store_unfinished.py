"""Test that each broker completes the pending work of the other in a store that moves.

Delayed messages, timers, half messages, retries and dead letters, between Java and Kourou and
back, after stops and after kills.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kourou.testing.process import Serving, run_command
from tests.interop.ledger import make_topics
from tests.interop.peer import start_java
from tests.interop.unfinished import LATER, OPTIONS, PAID, WORK, Unfinished

DELAYS = "messageDelayLevel=1s 1s 1s 1s 1s 12s\n"


async def _visit(namesrv_addr: str, origin: str, unfinished: Unfinished, *, is_first: bool) -> None:
    if is_first:
        await make_topics(namesrv_addr, LATER, PAID, WORK)
    else:
        await unfinished.finish(namesrv_addr)
    await unfinished.begin(namesrv_addr, origin)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", ["java", "kourou"])
def test_each_broker_completes_the_pending_work_of_the_other(
    jars: str, tmp_path: Path, first: str, is_killed: bool
) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(f"{DELAYS}{OPTIONS}")
    unfinished = Unfinished(is_exact=not is_killed)

    def visit_java(*, is_first: bool) -> None:
        java = start_java(jars, tmp_path / "java", store=store, options=f"{DELAYS}{OPTIONS}")
        try:
            asyncio.run(_visit(java.namesrv_addr, "java", unfinished, is_first=is_first))
            if is_killed:
                java.kill()
        finally:
            java.stop()

    def visit_kourou(*, is_first: bool) -> None:
        with Serving.start(store, "--config", str(conf), "--no-console") as serving:
            asyncio.run(_visit(serving.namesrv, "kourou", unfinished, is_first=is_first))
            if is_killed:
                serving.process.kill()
            outcome = serving.stop()
        assert is_killed or outcome.code == 0, outcome.err

    visits = [visit_java, visit_kourou] if first == "java" else [visit_kourou, visit_java]
    visits[0](is_first=True)
    visits[1](is_first=False)
    visits[0](is_first=False)

    checked = run_command("store", "check", str(store))
    assert is_killed or checked.code == 0, checked.out + checked.err
