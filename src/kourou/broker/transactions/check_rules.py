"""Whether the producer of an open half message is asked now. Pure.

    found                                                       what happens
    asked `transaction_check_max` times, or older than the      given up
    time for which files are kept
    behind where the queue ended when the round began           the round ends here
    it has an immunity time of its own, which is not over       it is passed over, or stored again
                                                                where too many wait behind it
    younger than `transaction_timeout_ms`, and never asked      the round ends here
    else                                                        its producer is asked

Source: TransactionalMessageServiceImpl.check, apache/rocketmq 5.5.0. It cannot tell there whether
an end of the last seconds is still on its way to the op queue, and looks again and again; here
that is known. RocketMQ stores every message with an immunity time of its own again in each round.
A message whose producer's clock is ahead is as old here as it has been stored.

Clocks may be wrong, store times included, which never go back after a clock was ahead. So a half
message is at least, and at most, as old as the rounds before say that found it, or did not yet
(`Rounds`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kourou.broker.transactions.half_messages import HalfMessage

ROUNDS_MAX: Final = 3_000
"""Rounds that are remembered: a day, one each 30 s."""


class Verdict(Enum):
    """What a round does with a half message; see above."""

    GIVE_UP = auto()
    END_ROUND = auto()
    PASS_OVER = auto()
    ASK = auto()


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """What the rules lean on.

    Attributes:
        timeout_ms: how long a producer may take.
        checks_max: how often one is asked.
        kept_ms: how long files are kept; what is older may be gone at any time.
    """

    timeout_ms: int
    checks_max: int
    kept_ms: int


class Rounds:
    """When rounds began and where the half queue ended then, by a clock that never jumps.

    The start of the broker counts as a round.
    """

    def __init__(self) -> None:
        self._began_ms: deque[int] = deque(maxlen=ROUNDS_MAX)
        self._ends: deque[int] = deque(maxlen=ROUNDS_MAX)

    def begin(self, steady_ms: int, end: int) -> None:
        """Note a round."""
        self._began_ms.append(steady_ms)
        self._ends.append(end)

    def age_ms(self, half: HalfMessage, told_ms: int, steady_ms: int) -> int:
        """Return how old a half message is, which is `told_ms` by the clocks."""
        found = bisect_right(self._ends, half.queue_offset)  # the first round that found it
        if found and half.first_offset == half.queue_offset:  # else it is older than its record
            told_ms = min(told_ms, steady_ms - self._began_ms[found - 1])
        if found < len(self._ends):
            told_ms = max(told_ms, steady_ms - self._began_ms[found])
        return told_ms


def verdict_on(half: HalfMessage, age_ms: int, end: int, limits: CheckLimits) -> Verdict:
    """Return what a round does with an open half message.

    Args:
        half: the message.
        age_ms: how old it is.
        end: of the half queue when the round began.
        limits: what decides.
    """
    if half.queue_offset >= end:
        return Verdict.END_ROUND
    if half.check_times >= limits.checks_max or age_ms > limits.kept_ms:
        return Verdict.GIVE_UP
    immunity_ms = half.immunity_ms(limits.timeout_ms)
    if immunity_ms is not None:
        return Verdict.PASS_OVER if age_ms <= immunity_ms else Verdict.ASK
    was_asked = half.check_times > 0 and half.first_offset != half.queue_offset
    return Verdict.ASK if was_asked or age_ms > limits.timeout_ms else Verdict.END_ROUND
