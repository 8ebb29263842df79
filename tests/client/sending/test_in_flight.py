"""Limits on messages in flight, in order of arrival, also with cancelled waits."""

from __future__ import annotations

import asyncio

from kourou.client.sending.in_flight import InFlight
from kourou.testing.loop import run_virtual


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_count_and_bytes_are_limited_in_order_of_arrival() -> None:
    async def main() -> None:
        slots = InFlight(messages_max=3, bytes_max=10)
        await slots.acquire(6)
        large = asyncio.create_task(slots.acquire(5))
        small = asyncio.create_task(slots.acquire(1))
        await settle()
        assert not large.done()
        assert not small.done(), "a small message must not overtake a large one that waits"

        slots.release(6)
        await settle()
        assert large.done()
        assert small.done()

        await slots.acquire(1)
        fourth = asyncio.create_task(slots.acquire(1))
        await settle()
        assert not fourth.done(), "three messages are in flight"
        slots.release(1)
        await fourth

    run_virtual(main())


def test_releasing_several_messages_admits_as_many() -> None:
    async def main() -> None:
        slots = InFlight(messages_max=3, bytes_max=10)
        for _ in range(3):
            assert slots.try_acquire(3)
        waiting = [asyncio.create_task(slots.acquire(4)) for _ in range(3)]
        await settle()
        assert not slots.try_acquire(0), "waiting messages are admitted first"
        slots.release(6, 2)
        await settle()
        assert [task.done() for task in waiting] == [True, False, False]
        slots.release(7, 2)
        await settle()
        assert [task.done() for task in waiting] == [True, True, True]
        slots.release(8, 2)
        await slots.wait_empty()

    run_virtual(main())


def test_message_larger_than_the_limit_is_admitted_alone() -> None:
    async def main() -> None:
        slots = InFlight(messages_max=3, bytes_max=10)
        await slots.acquire(99)
        after = asyncio.create_task(slots.acquire(1))
        await settle()
        assert not after.done()
        slots.release(99)
        await after

    run_virtual(main())


def test_cancelled_wait_releases_its_message() -> None:
    async def main() -> None:
        slots = InFlight(messages_max=2, bytes_max=10)
        await slots.acquire(6)
        large = asyncio.create_task(slots.acquire(9))
        small = asyncio.create_task(slots.acquire(1))
        await settle()
        large.cancel()
        await settle()
        assert small.done(), "no earlier message waits"

        chosen = asyncio.create_task(slots.acquire(9))
        await settle()
        slots.release(6)
        slots.release(1)  # admits the waiting one
        chosen.cancel()
        await settle()
        assert len(slots) == 0
        await slots.wait_empty()

    run_virtual(main())
