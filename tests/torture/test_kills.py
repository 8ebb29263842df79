"""A sample of the kills of `make torture`, which also judges the duration of starts."""

from __future__ import annotations

import pytest

from tests.torture.figures import Size
from tests.torture.kills import DAMAGE, HOLE, LOST, run


@pytest.mark.slow
def test_acknowledged_messages_survive_kills() -> None:
    figures = {figure.name: figure for figure in run(Size(cycles=2))}

    assert [figures[name] for name in (LOST, HOLE, DAMAGE) if not figures[name].held] == []
