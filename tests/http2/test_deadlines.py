"""Deadlines of many items with one timer."""

from __future__ import annotations

import asyncio

from kourou.http2.deadlines import TICK_S, Deadlines
from kourou.testing.loop import run_virtual


def test_items_are_reported_in_order_of_their_deadlines() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        passed: list[tuple[str, float]] = []
        deadlines = Deadlines(loop, lambda item: passed.append((item, loop.time())))
        began_s = loop.time()
        for item, after_s in (("c", 30.0), ("a", 0.5), ("b", 3.0), ("never", 4.0)):
            deadlines.add(item, began_s + after_s)
        deadlines.discard("never", began_s + 4.0)
        deadlines.discard("never", began_s + 4.0)
        deadlines.discard("unknown", began_s + 99.0)
        await asyncio.sleep(100)

        assert [item for item, _ in passed] == ["a", "b", "c"]
        for (_, at_s), after_s in zip(passed, (0.5, 3.0, 30.0), strict=True):
            assert after_s <= at_s - began_s <= after_s + 2 * TICK_S

    run_virtual(main())


def test_passed_item_may_add_another() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        passed: list[int] = []

        def on_passed(item: int) -> None:
            passed.append(item)
            deadlines.add(item + 1, loop.time() + 1)

        deadlines = Deadlines(loop, on_passed)
        deadlines.add(0, loop.time() - 5)
        await asyncio.sleep(4.5)
        assert passed == [0, 1, 2, 3, 4]
        deadlines.close()
        await asyncio.sleep(10)
        assert len(passed) == 5

    run_virtual(main())


def test_no_timer_is_left_when_all_items_have_passed() -> None:
    async def main() -> None:
        deadlines = Deadlines(asyncio.get_running_loop(), lambda _: None)
        deadlines.add(0, asyncio.get_running_loop().time() + 1)
        await asyncio.sleep(2)
        assert deadlines._timer is None
        assert not deadlines._by_tick

    run_virtual(main())
