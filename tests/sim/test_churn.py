"""Twenty consumers join and leave at random for ten minutes of virtual time."""

from __future__ import annotations

import pytest

from tests.effort import some
from tests.sim.churn import Pace, assert_nothing_is_lost

PACE = Pace(duration_s=600, stays_max_s=250, away_max_s=50)
CASES = [
    pytest.param(1, True, True, id="ordered-vanishing"),
    pytest.param(2, False, False, id="concurrent-planned"),
    pytest.param(3, True, False, id="ordered-planned"),
    pytest.param(4, False, True, id="concurrent-vanishing"),
]


@pytest.mark.parametrize(
    ("seed", "is_ordered", "may_vanish"),
    some(CASES, 1),
)
def test_no_message_is_lost_while_members_join_and_leave(
    seed: int, *, is_ordered: bool, may_vanish: bool
) -> None:
    assert_nothing_is_lost(seed, PACE, is_ordered=is_ordered, may_vanish=may_vanish)
