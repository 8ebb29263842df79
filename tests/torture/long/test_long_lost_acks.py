"""The judge of pops finds acknowledgements that a broker loses by design, and no others."""

from __future__ import annotations

import pytest

from tests.torture.chaos.lost_acks import run
from tests.torture.figures import Size


@pytest.mark.slow
def test_lost_acknowledgements_are_found() -> None:
    figures = run(Size(seconds=1))

    assert [figure for figure in figures if not figure.held] == []
