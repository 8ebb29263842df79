"""Invalid limits are refused with the value and the allowed range."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kourou.errors import ConfigError
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.remoting.limits import ConnectionLimits


@pytest.mark.parametrize("name", [field.name for field in fields(ConnectionLimits)])
def test_every_limit_must_be_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0: must be above 0"):
        ConnectionLimits(**{name: 0})


def test_a_frame_limit_above_what_peers_accept_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"peers accept at most {FRAME_SIZE_MAX}"):
        ConnectionLimits(frame_bytes_max=FRAME_SIZE_MAX + 1)


@pytest.mark.parametrize(
    "name",
    [
        "output_bytes_max",
        "partial_bytes_total_max",
        "unanswered_bytes_max",
        "unanswered_bytes_total_max",
    ],
)
def test_byte_limits_below_one_frame_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 1003"):
        ConnectionLimits(**{"frame_bytes_max": 1_000, name: 1_003})
    ConnectionLimits(**{"frame_bytes_max": 1_000, name: 1_004})
