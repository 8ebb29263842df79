"""A sample of the failing disk calls of `make torture`."""

from __future__ import annotations

from tests.torture.figures import Size
from tests.torture.seam_errors import run


def test_a_failing_disk_call_causes_no_false_acknowledgement() -> None:
    assert [figure for figure in run(Size(calls=5, jobs=1)) if not figure.held] == []
