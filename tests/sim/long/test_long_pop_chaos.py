"""Members that pop are killed beside their broker for an hour of virtual time in all."""

from __future__ import annotations

import pytest

from kourou.broker.config import FlushDiskType
from tests.sim.pop_chaos import run_pop_chaos

SECONDS = 60
SEEDS = range(15)


@pytest.mark.parametrize("has_jumps", [False, True], ids=["clock right", "clock jumps"])
@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("seed", SEEDS)
def test_popped_messages_are_neither_lost_nor_repeated(
    seed: int, flush: FlushDiskType, *, has_jumps: bool
) -> None:
    found = run_pop_chaos(seed, SECONDS, flush, has_jumps=has_jumps)
    assert (found.lost, found.wrong, found.twice) == (set(), [], [])
