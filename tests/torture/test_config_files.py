"""A sample of damaged config files: truncated, zeroed, removed, overwritten or swapped."""

from __future__ import annotations

from tests.torture.config_files import run
from tests.torture.figures import Size


def test_the_last_good_config_file_is_used_and_logged() -> None:
    assert [figure for figure in run(Size(jobs=1), step=7) if not figure.held] == []
