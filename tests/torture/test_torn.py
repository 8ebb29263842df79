"""The last record of the log, torn at every byte of its header and at 64 bytes of its body."""

from __future__ import annotations

from tests.torture.figures import Size
from tests.torture.torn import run


def test_recovery_truncates_only_the_torn_tail() -> None:
    assert [figure for figure in run(Size(jobs=1)) if not figure.held] == []
