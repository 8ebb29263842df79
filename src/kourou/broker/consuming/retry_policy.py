"""How long a message that was given back waits for its next delivery; pure.

Without a policy of the group it waits at delay level 3 + n after its n-th redelivery: 10 s, 30 s,
1 min ... An administrator may give the group its own (`group_retry_policy`, the JSON object of
RocketMQ's `groupRetryPolicy`):

    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000, 5000, 60000]}}
        ms, by redelivery + 2, as in Java; the last stands for all that follow
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000,
        "multiplier": 2}}
        min(max, initial * multiplier ** redelivery)

In Java these hold for POP and gRPC consumers only. What is given back waits at a delay level, so
here it is the shortest that is not shorter, else the longest.

Source: GroupRetryPolicy.java, CustomizedRetryPolicy.java, ExponentialRetryPolicy.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kourou.model.group import SubscriptionGroup

_FIRST_LEVEL: Final = 3
"""The level of the first retry, when the client leaves it to the broker: 10 s."""
_SKIPPED: Final = 2
"""Delays of a list that only levels below the first retry's have."""
_REDELIVERIES_MAX: Final = 32
"""Of an exponential policy: it does not grow beyond."""
_DEFAULTS: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}


def retry_level(
    group: SubscriptionGroup, reconsume_times: int, delay_levels_ms: Sequence[int]
) -> int:
    """Return the delay level, from 1, of a message that was given so often again before."""
    delay_ms = policy_delay_ms(group.group_retry_policy, reconsume_times)
    if delay_ms is None:
        return min(_FIRST_LEVEL + reconsume_times, len(delay_levels_ms))
    for level, waits_ms in enumerate(delay_levels_ms, 1):
        if waits_ms >= delay_ms:
            return level
    return len(delay_levels_ms)


def policy_delay_ms(policy: Mapping[str, object], reconsume_times: int) -> int | None:
    """Return how long the policy has a message wait, in ms; None if it says nothing of use."""
    if policy.get("type", "CUSTOMIZED") == "EXPONENTIAL":
        exponential = policy.get("exponentialRetryPolicy")
        if not isinstance(exponential, Mapping):
            return None
        values = {name: exponential.get(name, default) for name, default in _DEFAULTS.items()}
        initial, longest, multiplier = map(_as_delay, values.values())
        if initial is None or longest is None or multiplier is None:
            return None
        return int(min(longest, initial * multiplier ** min(reconsume_times, _REDELIVERIES_MAX)))
    customized = policy.get("customizedRetryPolicy")
    delays = customized.get("next") if isinstance(customized, Mapping) else None
    if not isinstance(delays, list) or not delays:
        return None
    return _as_delay(delays[min(reconsume_times + _SKIPPED, len(delays) - 1)])


def _as_delay(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
