"""Rules that decide in a check round what happens to an open half message. Pure.

    half message                                                   action
    checked `transaction_check_max` times, or older than the       given up
    retention time of files
    stored after the round began                                   the round ends here
    has an immunity time of its own that is not over               skipped; stored again where many
                                                                   messages follow it
    younger than `transaction_timeout_ms`, and never checked       the round ends here
    any other                                                      a check is sent to a producer

Source: TransactionalMessageServiceImpl.check, apache/rocketmq 5.5.0. Java cannot tell whether an
end of the last seconds is still on its way to the op queue, and so looks repeatedly; here the
ledger has that state. RocketMQ stores each message with an immunity time again in every round. The
age of a message is at least the time since it was stored, even if its producer's clock is ahead.

Clocks may be wrong. Store times may be wrong too, because they never go back after a clock was
ahead. So the age is limited from below and above by the rounds that already found the message, or
did not yet (`RoundHistory`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kourou.broker.transactions.half_messages import HalfMessage

ROUNDS_MAX: Final = 3_000
"""Number of rounds that are recorded: a day at one per 30 s."""


class CheckAction(Enum):
    """Action of a round for a half message; see the module's table."""

    GIVE_UP = auto()
    END_ROUND = auto()
    SKIP = auto()
    CHECK = auto()


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Configured limits of the rules.

    Attributes:
        timeout_ms: time that a producer has to end a transaction before it is checked.
        checks_max: maximum number of checks.
        retention_ms: retention time of files; an older message may be deleted at any time.
    """

    timeout_ms: int
    checks_max: int
    retention_ms: int


class RoundHistory:
    """Start times of rounds, on a clock that never jumps, and the half queue's end at each.

    The start of the broker counts as a round.
    """

    def __init__(self) -> None:
        self._began_ms: deque[int] = deque(maxlen=ROUNDS_MAX)
        self._ends: deque[int] = deque(maxlen=ROUNDS_MAX)

    def begin(self, steady_ms: int, end: int) -> None:
        """Record the start of a round."""
        self._began_ms.append(steady_ms)
        self._ends.append(end)

    def age_ms(self, half: HalfMessage, clock_age_ms: int, steady_ms: int) -> int:
        """Return the age of a half message; `clock_age_ms` is its age by the wall clock."""
        found = bisect_right(self._ends, half.queue_offset)  # the first round that found it
        if found and half.first_offset == half.queue_offset:  # a later record is younger than it
            clock_age_ms = min(clock_age_ms, steady_ms - self._began_ms[found - 1])
        if found < len(self._ends):
            clock_age_ms = max(clock_age_ms, steady_ms - self._began_ms[found])
        return clock_age_ms


def choose_action(half: HalfMessage, age_ms: int, end: int, limits: CheckLimits) -> CheckAction:
    """Return the action of a round for an open half message.

    Args:
        half: the message.
        age_ms: its age.
        end: end of the half queue when the round began.
        limits: the configured limits.
    """
    if half.queue_offset >= end:
        return CheckAction.END_ROUND
    if half.check_times >= limits.checks_max or age_ms > limits.retention_ms:
        return CheckAction.GIVE_UP
    immunity_ms = half.immunity_ms(limits.timeout_ms)
    if immunity_ms is not None:
        return CheckAction.SKIP if age_ms <= immunity_ms else CheckAction.CHECK
    was_asked = half.check_times > 0 and half.first_offset != half.queue_offset
    return CheckAction.CHECK if was_asked or age_ms > limits.timeout_ms else CheckAction.END_ROUND
