"""A sample of the system calls that `make torture` lets fail; times are judged there."""

from __future__ import annotations

import pytest

from tests.torture.failing_calls import BROKEN, DAMAGE, FALSE, RETRIED, SILENT, STUCK
from tests.torture.figures import Size
from tests.torture.shim_errors import run


@pytest.mark.slow
def test_a_system_call_that_fails_makes_no_false_acknowledgement() -> None:
    figures = {figure.name: figure for figure in run(Size(calls=4, stride=3))}

    judged = [figures.get(name) for name in (FALSE, RETRIED, SILENT, STUCK, DAMAGE, BROKEN)]
    assert [figure for figure in judged if figure is not None and not figure.held] == []
