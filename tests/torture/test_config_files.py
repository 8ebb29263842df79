"""Config files that are cut, emptied, removed, overwritten or swapped with their backups."""

from __future__ import annotations

from tests.torture.config_files import run
from tests.torture.figures import Size


def test_the_last_good_config_file_is_used_and_that_is_said() -> None:
    assert [figure for figure in run(Size(jobs=1), step=7) if not figure.held] == []
