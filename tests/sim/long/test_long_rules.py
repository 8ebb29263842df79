"""Rules of replication that others cover: messages are lost only without all of these."""

from __future__ import annotations

import pytest

from tests.sim.replicas.rules import RULES
from tests.sim.replicas.simulation import is_lack_found, simulate

COVERED = [name for name, rule in RULES.items() if rule.covered_by]
SEEDS = range(10)


@pytest.mark.parametrize("name", COVERED)
def test_lack_of_a_covered_rule_is_found_without_those_that_cover_it(name: str) -> None:
    rule = RULES[name]
    assert rule.covered_by
    for seed in SEEDS:
        assert simulate(seed, rule, drill=rule.drill).failures == []
    assert is_lack_found(rule.drill, rule, *(RULES[other] for other in rule.covered_by))
