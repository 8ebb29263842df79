"""Delay levels and their durations.

Source: MessageStoreConfig.messageDelayLevel, ScheduleMessageService.parseDelayLevel.
"""

from __future__ import annotations

import re
from typing import Final

from kourou.errors import ConfigError

DELAY_LEVELS_TEXT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""Default of the option messageDelayLevel."""

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"([0-9]{1,9})([smhd])")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the duration of each level of a text such as `1s 5s 1m`, in ms; level 1 comes first.

    Raises:
        ConfigError: the text is empty, or a part is not a number of at most nine digits followed
            by s, m, h or d.
    """
    levels = []
    for part in text.split():
        match = _LEVEL.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"messageDelayLevel: {part!r} is not a number followed by s, m, h or d"
            )
        levels.append(int(match[1]) * _UNIT_MS[match[2]])
    if not levels:
        raise ConfigError("messageDelayLevel: at least one level is needed")
    return tuple(levels)


DELAY_LEVELS_MS: Final = parse_delay_levels(DELAY_LEVELS_TEXT)
"""Default duration of each level in milliseconds; level n is at index n - 1."""
