"""A sample of the failing system calls of `make torture`, which also judges the times."""

from __future__ import annotations

import pytest

from tests.torture.failing_calls import BROKEN, DAMAGE, FALSE, RETRIED, SILENT, STUCK
from tests.torture.figures import Size
from tests.torture.shim_errors import run


@pytest.mark.slow
def test_a_failing_system_call_causes_no_false_acknowledgement() -> None:
    figures = {figure.name: figure for figure in run(Size(calls=4, stride=3))}

    judged = [figures.get(name) for name in (FALSE, RETRIED, SILENT, STUCK, DAMAGE, BROKEN)]
    assert [figure for figure in judged if figure is not None and not figure.held] == []
