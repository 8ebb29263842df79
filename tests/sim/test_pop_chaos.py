"""Members that pop are killed beside their broker: nothing is lost, and nothing comes back.

`tests/sim/long` runs longer.
"""

from __future__ import annotations

import pytest

from kourou.broker.config import FlushDiskType
from tests.sim.pop_chaos import run_pop_chaos


@pytest.mark.parametrize("has_jumps", [False, True], ids=["clock right", "clock jumps"])
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_popped_messages_are_neither_lost_nor_repeated(
    flush: FlushDiskType, *, has_jumps: bool
) -> None:
    found = run_pop_chaos(1, 12, flush, has_jumps=has_jumps)
    assert (found.lost, found.wrong, found.twice) == (set(), [], [])
    assert found.kills >= 1
    assert found.revived >= 1
