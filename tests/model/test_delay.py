"""The default delay levels are Java's, and other levels can be configured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kourou.errors import ConfigError
from kourou.model.delay import DELAY_LEVELS_MS, DELAY_LEVELS_TEXT, parse_delay_levels

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"


def test_default_levels_equal_javas() -> None:
    tables = json.loads((VECTORS / "tables.json").read_text())

    assert tables["message_delay_level"] == DELAY_LEVELS_TEXT
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[0] == 1_000
    assert DELAY_LEVELS_MS[2] == 10_000
    assert DELAY_LEVELS_MS[-1] == 7_200_000


def test_levels_accept_four_units() -> None:
    assert parse_delay_levels(" 1s 2m  3h 4d ") == (1_000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize("text", ["", " ", "1", "s", "1x", "1s,2s", "-1s", "1.5s", "1234567890s"])
def test_invalid_level_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        parse_delay_levels(text)
