"""Twenty consumers join and leave at random for an hour of virtual time."""

from __future__ import annotations

import pytest

from tests.sim.churn import Pace, assert_nothing_is_lost

PACE = Pace(duration_s=3_600, stays_max_s=1_500, away_max_s=300)


@pytest.mark.parametrize("is_ordered", [True, False], ids=["ordered", "concurrent"])
@pytest.mark.parametrize("may_vanish", [True, False], ids=["vanishing", "planned"])
def test_no_message_is_lost_in_an_hour(*, is_ordered: bool, may_vanish: bool) -> None:
    seed = 1 + 2 * is_ordered + may_vanish
    assert_nothing_is_lost(seed, PACE, is_ordered=is_ordered, may_vanish=may_vanish)
