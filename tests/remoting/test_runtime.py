"""The system runtime runs blocking work off the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kourou.remoting.network import TcpNetwork
from kourou.remoting.runtime import OFFLOAD_THREADS, Runtime


def test_blocking_work_runs_on_another_thread_and_returns_its_result() -> None:
    async def main() -> None:
        runtime = Runtime.system()
        assert isinstance(runtime.network, TcpNetwork)
        assert await runtime.offload(threading.get_ident) != threading.get_ident()
        assert await runtime.offload(int, "12", base=8) == 10
        with pytest.raises(ValueError, match="nine"):
            await runtime.offload(int, "nine")

    asyncio.run(main())


def test_offload_runs_several_blocking_calls_at_once() -> None:
    async def main() -> None:
        runtime = Runtime.system()
        together = threading.Barrier(OFFLOAD_THREADS, timeout=30)
        calls = [runtime.offload(together.wait) for _ in range(OFFLOAD_THREADS)]
        assert sorted(await asyncio.gather(*calls)) == [*range(OFFLOAD_THREADS)]

    asyncio.run(main())
