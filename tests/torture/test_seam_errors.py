"""A sample of the failing calls that `make torture` goes through."""

from __future__ import annotations

from tests.torture.figures import Size
from tests.torture.seam_errors import run


def test_a_call_that_fails_makes_no_false_acknowledgement() -> None:
    assert [figure for figure in run(Size(calls=5, jobs=1)) if not figure.held] == []
