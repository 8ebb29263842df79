"""A sample of the flipped bits of `make torture`."""

from __future__ import annotations

import pytest

from tests.torture.figures import Size
from tests.torture.flips import run


@pytest.mark.slow
def test_a_flipped_bit_causes_no_wrong_delivery_and_is_reported() -> None:
    figures = run(Size(places=40, jobs=1))

    assert [figure for figure in figures if not figure.held] == []
    assert all(figure.value == "0 in 40 places" for figure in figures)
