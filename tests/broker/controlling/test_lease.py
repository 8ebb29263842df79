"""A master's lease counts from before its question, and ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kourou.broker.controlling.lease import Lease
from kourou.testing.loop import run_virtual


def run(test: Callable[[Lease, list[float]], Awaitable[None]]) -> None:
    async def main() -> None:
        ends: list[float] = []
        loop = asyncio.get_running_loop()
        await test(Lease(2_000, lambda: ends.append(round(loop.time(), 3))), ends)

    run_virtual(main())


def test_a_new_lease_is_not_held() -> None:
    async def test(lease: Lease, _: list[float]) -> None:
        assert not lease.is_held

    run(test)


def test_a_lease_ends_its_duration_after_the_question() -> None:
    async def test(lease: Lease, ends: list[float]) -> None:
        asked_at_s = lease.now_s()
        await asyncio.sleep(0.5)
        lease.renew(asked_at_s)
        assert lease.is_held
        await asyncio.sleep(10)
        assert (lease.is_held, ends) == (False, [2.0])

    run(test)


def test_a_renewed_lease_ends_later() -> None:
    async def test(lease: Lease, ends: list[float]) -> None:
        for _ in range(4):
            lease.renew(lease.now_s())
            await asyncio.sleep(1)
        assert (lease.is_held, ends) == (True, [])
        await asyncio.sleep(10)
        assert ends == [5.0]

    run(test)


def test_an_answer_that_comes_too_late_renews_nothing() -> None:
    async def test(lease: Lease, ends: list[float]) -> None:
        asked_at_s = lease.now_s()
        lease.renew(asked_at_s)
        await asyncio.sleep(2.5)
        lease.renew(asked_at_s)
        assert (lease.is_held, ends) == (False, [2.0])

    run(test)


def test_a_cancelled_lease_reports_no_end() -> None:
    async def test(lease: Lease, ends: list[float]) -> None:
        lease.renew(lease.now_s())
        lease.cancel()
        await asyncio.sleep(10)
        assert ends == []

    run(test)
