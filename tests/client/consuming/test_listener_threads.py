"""Listeners that block keep up nothing but themselves. Real threads, one real event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kourou.client.consuming.listener_threads import ListenerThreads


def test_functions_run_beside_the_loop_and_at_most_so_many_at_a_time() -> None:
    barrier = threading.Barrier(3, timeout=30)

    def meet() -> str:
        barrier.wait()
        return threading.current_thread().name

    async def main() -> None:
        threads = ListenerThreads(2, "test-listener")
        first, second = asyncio.ensure_future(threads(meet)), asyncio.ensure_future(threads(meet))
        third = asyncio.ensure_future(threads(threading.get_ident))
        await asyncio.sleep(0)
        assert not third.done()
        barrier.wait()  # only here, on the loop's thread, do the two become three
        names = {await first, await second}
        assert len(names) == 2
        assert all(name.startswith("test-listener") for name in names)
        assert await third != threading.get_ident()
        threads.close()

    asyncio.run(main())


def test_what_a_function_raises_is_raised_and_closing_takes_no_more() -> None:
    async def main() -> None:
        threads = ListenerThreads(1, "test-listener")
        with pytest.raises(ZeroDivisionError):
            await threads(divmod, 1, 0)
        threads.close()
        with pytest.raises(RuntimeError):
            await threads(divmod, 1, 1)

    asyncio.run(main())
