"""A sample of the flipped bits that `make torture` goes through by the thousand."""

from __future__ import annotations

import pytest

from tests.torture.figures import Size
from tests.torture.flips import run


@pytest.mark.slow
def test_a_flipped_bit_serves_nothing_wrong_and_is_said_by_name() -> None:
    figures = run(Size(places=40, jobs=1))

    assert [figure for figure in figures if not figure.held] == []
    assert all(figure.value == "0 in 40 places" for figure in figures)
