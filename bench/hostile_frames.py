"""Garbage for the remoting ports: mutations of recorded requests.

Most of them get a correct size field, so that they pass the first check.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Final

from bench.hostile_peers import Write
from kourou.protocol.codes import RequestCode
from tests.fuzz.mutate import mutate
from tests.golden_exchanges import exchanges

FRAMES_A_CONNECTION: Final = 50

_EXCLUDED: Final = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}
"""Requests whose valid mutations may disable features that the healthy client uses."""

_SIZED: Final = 0.9
"""Share of frames with a corrected size field."""


def conversation(dice: random.Random) -> Iterator[Write]:
    """Return what one connection sends."""
    for _ in range(FRAMES_A_CONNECTION):
        yield _frame(dice), 1


@functools.cache
def _seeds() -> list[bytes]:
    return [
        exchange.request.frame
        for exchange in exchanges().values()
        if exchange.code not in _EXCLUDED
    ]


def _frame(dice: random.Random) -> bytes:
    """Return one mutated frame."""
    data = mutate(dice, _seeds())
    if len(data) > 4 and dice.random() < _SIZED:
        return (len(data) - 4).to_bytes(4, "big") + data[4:]
    return data
