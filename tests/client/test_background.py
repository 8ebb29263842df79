"""Background tasks end with their client, including those that run users' functions."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kourou.client.background import BackgroundTasks
from kourou.testing.loop import run_virtual


def test_task_that_suppresses_cancellation_delays_close_by_one_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def stubborn() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
            await released.wait()

        tasks = BackgroundTasks()
        task = tasks.start(stubborn, "consume X")
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        await tasks.close()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(1.0)
        assert "background.abandoned name=consume X" in caplog.text
        released.set()
        await task

    run_virtual(main())


def test_task_may_close_all_other_tasks() -> None:
    async def main() -> None:
        tasks = BackgroundTasks()
        other = tasks.start(lambda: asyncio.sleep(100), "wait")
        ended = tasks.start(tasks.close, "close")
        await ended
        assert other.cancelled()
        await tasks.close()

    run_virtual(main())
