"""Whether the producer of an open half message is asked now. Pure.

    found                                                       what happens
    asked `transaction_check_max` times, or older than the      given up
    time for which files are kept
    stored since the round began                                the round ends here
    it has an immunity time of its own, which is not over       it is passed over, or stored again
                                                                where too many wait behind it
    younger than `transaction_timeout_ms`                       the round ends here
    else                                                        its producer is asked

Source: TransactionalMessageServiceImpl.check, apache/rocketmq 5.5.0. It cannot tell there whether
an end of the last seconds is still on its way to the op queue, and looks again and again; here
that is known. RocketMQ stores every message with an immunity time of its own again in each round.
A message whose producer's clock is ahead is as old here as it has been stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from kourou.broker.transactions.half_messages import HalfMessage


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


def verdict_on(half: HalfMessage, now_ms: int, round_began_ms: int, limits: CheckLimits) -> Verdict:
    """Return what a round does with an open half message."""
    born_at_ms = min(half.draft.born_at_ms, half.store_at_ms)
    age_ms = now_ms - born_at_ms
    if half.check_times >= limits.checks_max or age_ms > limits.kept_ms:
        return Verdict.GIVE_UP
    if half.store_at_ms >= round_began_ms:
        return Verdict.END_ROUND
    immunity_ms = half.immunity_ms(limits.timeout_ms)
    if immunity_ms is not None:
        return Verdict.PASS_OVER if age_ms <= immunity_ms else Verdict.ASK
    return Verdict.END_ROUND if age_ms <= limits.timeout_ms else Verdict.ASK
