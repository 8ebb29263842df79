"""A sample of the flipped bits that `make torture` goes through by the thousand."""

from __future__ import annotations

from tests.torture.figures import Size
from tests.torture.flips import run
from tests.torture.judged import CRASHED, TABLE


def test_a_flipped_bit_in_a_config_file_changes_nothing_that_is_not_said() -> None:
    figures = {figure.name: figure for figure in run(Size(places=60, jobs=1))}

    assert figures[TABLE].held, figures[TABLE]
    assert figures[CRASHED].held, figures[CRASHED]
