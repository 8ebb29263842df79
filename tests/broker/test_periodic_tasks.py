"""A periodic task survives its failures and logs the first of a row."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.testing.loop import run_virtual


def test_a_loop_continues_after_failures_and_logs_the_first_of_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes = [True, False, False, True, False]
    ran = 0

    async def act() -> None:
        nonlocal ran
        ran += 1
        if ran <= len(outcomes) and not outcomes[ran - 1]:
            raise OSError("no space")

    async def main() -> None:
        loops = PeriodicTasks()
        loops.start("persist", 100, act)
        await asyncio.sleep(0.65)
        await loops.stop()

    with caplog.at_level(logging.INFO):
        run_virtual(main())

    assert ran == 6
    assert [record.getMessage() for record in caplog.records] == [
        "loop.failed name=persist",
        "loop.recovered name=persist",
        "loop.failed name=persist",
        "loop.recovered name=persist",
    ]


def test_stopping_ends_an_action_that_hangs() -> None:
    outcomes: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise

    async def main() -> None:
        loops = PeriodicTasks()
        loops.start("hang", 1, hang)
        await asyncio.sleep(1)
        await loops.stop()
        assert outcomes == ["cancelled"]

    run_virtual(main())
