"""Each rule of replication is needed: a simulation without it finds what is lost."""

from __future__ import annotations

import pytest

from tests.effort import some
from tests.sim.replicas.drills import DRILLS
from tests.sim.replicas.rules import RULES
from tests.sim.replicas.simulation import drawn_drill, is_lack_found, simulate

NEEDED = [name for name, rule in RULES.items() if rule.covered_by is None]


@pytest.mark.parametrize("name", NEEDED)
def test_lack_of_a_rule_is_found(name: str) -> None:
    assert is_lack_found(RULES[name].drill, RULES[name])


@pytest.mark.parametrize("drill", some(list(DRILLS), 1))
def test_nothing_is_lost_in_a_drill_with_all_rules(drill: str) -> None:
    result = simulate(1, drill=drill)

    assert (result.failures, result.overlaps, result.is_stuck) == ([], [], False)
    assert result.acknowledged > 0


@pytest.mark.parametrize("seed", some(range(100), 1))
def test_nothing_is_lost_without_the_lease(seed: int) -> None:
    assert simulate(seed, RULES["lease"]).failures == []


def test_every_drill_is_drawn() -> None:
    assert {drawn_drill(seed) for seed in range(500)} == {"", *DRILLS}
