"""A short run of the changes of a group's mode of `make torture`."""

from __future__ import annotations

import pytest

from tests.torture.chaos.modes import run
from tests.torture.figures import Size


@pytest.mark.slow
def test_no_message_is_lost_while_the_mode_of_its_group_changes() -> None:
    figures = run(Size(messages=300))

    assert [figure for figure in figures if not figure.held] == []
