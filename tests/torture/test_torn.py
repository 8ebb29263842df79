"""The last record of the log, torn at every byte of its header and at 64 of its body."""

from __future__ import annotations

from tests.torture.figures import Size
from tests.torture.torn import run


def test_a_torn_tail_is_cut_off_and_nothing_else() -> None:
    assert [figure for figure in run(Size(jobs=1)) if not figure.held] == []
