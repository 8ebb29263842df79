"""A sample of the chaos that `make torture` goes through."""

from __future__ import annotations

import pytest

from tests.torture.chaos.run import RIGHT, run
from tests.torture.figures import Size


@pytest.mark.slow
def test_all_kinds_of_messages_at_once_outlive_kills() -> None:
    figures = run(Size(seconds=6), ["SYNC_FLUSH"], [RIGHT])

    assert [figure for figure in figures if not figure.held] == []
