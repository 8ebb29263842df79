"""A simulated runtime is deterministic for its seed."""

from __future__ import annotations

import asyncio

from kourou.testing.clock import EPOCH_MS
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert sim_runtime(3).random.random() == sim_runtime(3).random.random()
    assert sim_runtime(3).random.random() != sim_runtime(4).random.random()


def test_a_network_can_be_shared() -> None:
    network = MemoryNetwork()

    assert sim_runtime(1, network).network is sim_runtime(2, network).network is network


def test_the_clock_follows_the_loop() -> None:
    async def main() -> int:
        runtime = sim_runtime()
        await asyncio.sleep(2)
        return runtime.clock.now_ms()

    assert run_virtual(main()) == EPOCH_MS + 2_000


def test_blocking_work_runs_at_once_and_raises_its_errors() -> None:
    async def main() -> tuple[int, str]:
        runtime = sim_runtime()
        result = await runtime.offload(int, "12", base=8)
        try:
            await runtime.offload(int, "nine")
        except ValueError as error:
            return result, str(error)
        return result, ""

    result, error = run_virtual(main())
    assert result == 10
    assert "nine" in error
