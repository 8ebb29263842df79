"""Delay until the next delivery of a message that was sent back. Pure.

By default the delay level after the n-th redelivery is 3 + n: 10 s, 30 s, 1 min ... An
administrator may give the group a policy of its own (`group_retry_policy`, the JSON object of
RocketMQ's `groupRetryPolicy`):

    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000, 5000, 60000]}}
        ms, by redelivery + 2, as in Java; the last applies to all further ones
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000,
        "multiplier": 2}}
        min(max, initial * multiplier ** redelivery)

In Java a policy applies to POP and gRPC consumers only. Messages that are sent back wait at a delay
level. So here the shortest level that is not shorter than the policy's delay is used, else the
longest level.

Source: GroupRetryPolicy.java, CustomizedRetryPolicy.java, ExponentialRetryPolicy.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kourou.model.group import SubscriptionGroup

_FIRST_LEVEL: Final = 3
"""Delay level of the first retry if the client leaves it to the broker: 10 s."""
_SKIPPED_DELAYS: Final = 2
"""Number of leading delays in a list that do not apply to sent-back messages."""
_REDELIVERIES_MAX: Final = 32
"""Limit on the exponent of an exponential policy."""
_DEFAULTS: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}


def retry_level(
    group: SubscriptionGroup, reconsume_times: int, delay_levels_ms: Sequence[int]
) -> int:
    """Return the delay level, from 1, of a message with that many redeliveries so far."""
    delay_ms = policy_delay_ms(group.group_retry_policy, reconsume_times)
    if delay_ms is None:
        return min(_FIRST_LEVEL + reconsume_times, len(delay_levels_ms))
    for level, level_ms in enumerate(delay_levels_ms, 1):
        if level_ms >= delay_ms:
            return level
    return len(delay_levels_ms)


def policy_delay_ms(policy: Mapping[str, object], reconsume_times: int) -> int | None:
    """Return the policy's delay in ms; None if the policy is incomplete or invalid."""
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
    return _as_delay(delays[min(reconsume_times + _SKIPPED_DELAYS, len(delays) - 1)])


def _as_delay(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
