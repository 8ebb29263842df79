"""Virtual time jumps, is deterministic, and reveals errors that asyncio tolerates."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from kourou.testing.loop import DeadlockError, LeakedTasksError, run_virtual


def test_three_virtual_days_take_no_real_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3 * 86_400)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(3 * 86_400)


def test_virtual_time_does_not_advance_without_waits() -> None:
    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def wake(after_s: int) -> None:
            await asyncio.sleep(after_s)
            order.append(after_s)

        await asyncio.gather(*(wake(after_s) for after_s in (3600, 1, 60)))
        return order

    assert run_virtual(main()) == [1, 60, 3600]


def test_the_same_seed_gives_the_same_interleaving() -> None:
    async def main() -> list[int]:
        chance = random.Random(7)
        order: list[int] = []

        async def work(name: int) -> None:
            for _ in range(10):
                await asyncio.sleep(chance.random())
                order.append(name)

        await asyncio.gather(*(work(name) for name in range(5)))
        return order

    first, second = run_virtual(main()), run_virtual(main())
    assert first == second
    assert first != sorted(first)


def test_a_deadlock_error_lists_the_tasks_and_their_lines() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"test_loop\.py:\d+ in wait_for_nobody"):
        run_virtual(wait_for_nobody())


def test_a_periodic_timer_does_not_hide_a_deadlock() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_later(1, tick)

        tick()
        await loop.create_future()

    with pytest.raises(DeadlockError, match="not done after 60"):
        run_virtual(main(), limit_s=60)


def test_a_task_that_outlives_the_main_one_is_an_error() -> None:
    tasks = []

    async def main() -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(9), name="forgotten"))
        await asyncio.sleep(1)

    with pytest.raises(LeakedTasksError, match="forgotten"):
        run_virtual(main())


def test_a_task_cancelled_at_the_end_is_no_leak() -> None:
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(9)
        await asyncio.sleep(0)

    async def main() -> str:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(1)
        task.cancel()
        return "done"

    assert run_virtual(main()) == "done"


def test_an_exception_in_a_callback_is_raised_at_the_end() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 // 0)
        await asyncio.sleep(2)

    with pytest.raises(ExceptionGroup, match="unhandled exceptions") as caught:
        run_virtual(main())
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


def test_an_exception_of_the_main_task_is_raised_unchanged() -> None:
    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main())


def test_a_loop_error_without_an_exception_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_exception_handler({"message": "something odd"})

    run_virtual(main())
    assert "something odd" in caplog.text
