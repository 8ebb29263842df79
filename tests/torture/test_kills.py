"""A sample of the kills that `make torture` goes through; how fast it is ready is judged there."""

from __future__ import annotations

import pytest

from tests.torture.figures import Size
from tests.torture.kills import DAMAGE, HOLE, LOST, run


@pytest.mark.slow
def test_a_killed_broker_has_all_that_it_acknowledged() -> None:
    figures = {figure.name: figure for figure in run(Size(cycles=2))}

    assert [figures[name] for name in (LOST, HOLE, DAMAGE) if not figures[name].held] == []
