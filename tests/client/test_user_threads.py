"""Blocking listeners do not block the event loop. Real threads, one real event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kourou.client.user_functions import UserThreads


def test_functions_run_off_the_loop_up_to_the_thread_limit() -> None:
    barrier = threading.Barrier(3, timeout=30)

    def meet() -> str:
        barrier.wait()
        return threading.current_thread().name

    async def main() -> None:
        threads = UserThreads(2, "test-listener")
        first, second = asyncio.ensure_future(threads(meet)), asyncio.ensure_future(threads(meet))
        third = asyncio.ensure_future(threads(threading.get_ident))
        await asyncio.sleep(0)
        assert not third.done()
        barrier.wait()  # the loop's thread is the third party
        names = {await first, await second}
        assert len(names) == 2
        assert all(name.startswith("test-listener") for name in names)
        assert await third != threading.get_ident()
        threads.close()

    asyncio.run(main())


def test_errors_propagate_and_a_closed_pool_refuses_work() -> None:
    async def main() -> None:
        threads = UserThreads(1, "test-listener")
        with pytest.raises(ZeroDivisionError):
            await threads(divmod, 1, 0)
        threads.close()
        with pytest.raises(RuntimeError):
            await threads(divmod, 1, 1)

    asyncio.run(main())
