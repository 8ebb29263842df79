"""Settings of clients: the server's values, merged into those that the client sent.

Source: GrpcClientSettingsManager.java, GroupRetryPolicy.java, CustomizedRetryPolicy.java,
ExponentialRetryPolicy.java, apache/rocketmq 5.5.0, and recorded streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kourou.broker.consuming.retry import policy_delay_ms
from kourou.decimals import INT_DIGITS, decimal_or
from kourou.errors import GrpcError
from kourou.http2.grpc_messages import GrpcStatus
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.group import SubscriptionGroup
from kourou.proxy.checks import CallLimits
from kourou.proxy.pb import v2
from kourou.proxy.times import duration

LITE_QUOTA_ATTRIBUTE: Final = "lite.sub.client.quota"
_LITE_QUOTA: Final = 2_000
_SKIPPED_DELAYS: Final = 2
"""Number of leading delays in a list that do not apply to redeliveries."""
_EXPONENTIAL: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}
_DELAY_MS_MAX: Final = 10**12


@dataclass(frozen=True, slots=True)
class ProducerDefaults:
    """Values for producers.

    Attributes:
        max_attempts: of a send.
        initial_backoff_ms: before the second attempt.
        max_backoff_ms: before any attempt.
        multiplier: from one backoff to the next.
        validates_types: clients compare the type of a message with its topic's.
    """

    max_attempts: int = 3
    initial_backoff_ms: int = 10
    max_backoff_ms: int = 1_000
    multiplier: float = 2.0
    validates_types: bool = True


def remembered_settings(settings: v2.Settings, limits: CallLimits) -> v2.Settings:
    """Return the settings to remember of a client.

    Those of a consumer get the values of an unnamed group where the client sent none.

    Raises:
        GrpcError: the settings are neither a producer's nor a consumer's.
    """
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise GrpcError(
            GrpcStatus.INVALID_ARGUMENT, "there is no publishing or subscription data in settings"
        )
    remembered = v2.Settings()
    if kind == "subscription":
        _fill_subscription(remembered, SubscriptionGroup(""), limits)
    remembered.MergeFrom(settings)
    return remembered


def answered_settings(
    remembered: v2.Settings,
    group: SubscriptionGroup | None,
    limits: CallLimits,
    defaults: ProducerDefaults,
) -> v2.Settings:
    """Return the settings that apply to a client, and that it receives.

    Args:
        remembered: from `remembered_settings`.
        group: that of a consumer; None if it is unknown: the client's values remain.
        limits: of calls.
        defaults: values for producers.
    """
    answer = v2.Settings()
    answer.CopyFrom(remembered)
    if remembered.HasField("publishing"):
        _fill_publishing(answer, limits, defaults)
    elif remembered.HasField("subscription") and group is not None:
        _fill_subscription(answer, group, limits)
    answer.ClearField("metric")
    answer.metric.SetInParent()  # present, and off
    return answer


def retry_delay_ms(group: SubscriptionGroup, reconsume_times: int) -> int:
    """Return the delay of a message's next redelivery to the group."""
    delay_ms = policy_delay_ms(group.group_retry_policy, reconsume_times)
    if delay_ms is not None:
        return delay_ms
    return DELAY_LEVELS_MS[min(reconsume_times + _SKIPPED_DELAYS, len(DELAY_LEVELS_MS) - 1)]


def _fill_publishing(settings: v2.Settings, limits: CallLimits, defaults: ProducerDefaults) -> None:
    policy = settings.backoff_policy
    policy.max_attempts = defaults.max_attempts
    policy.exponential_backoff.CopyFrom(
        v2.ExponentialBackoff(
            initial=duration(defaults.initial_backoff_ms),
            max=duration(defaults.max_backoff_ms),
            multiplier=defaults.multiplier,
        )
    )
    settings.publishing.max_body_size = limits.body_bytes_max
    settings.publishing.validate_message_type = defaults.validates_types


def _fill_subscription(settings: v2.Settings, group: SubscriptionGroup, limits: CallLimits) -> None:
    subscription = settings.subscription
    subscription.receive_batch_size = limits.batch_max
    subscription.long_polling_timeout.CopyFrom(duration(limits.polling_ms_max))
    subscription.fifo = group.consume_message_orderly
    subscription.lite_subscription_quota = _lite_quota(group)
    subscription.max_lite_topic_size = limits.lite_topic_bytes_max
    policy = settings.backoff_policy
    policy.max_attempts = group.retry_max_times + 1
    if group.group_retry_policy.get("type") == "EXPONENTIAL":
        policy.exponential_backoff.CopyFrom(_exponential(group.group_retry_policy))
    else:
        policy.customized_backoff.CopyFrom(_customized(group.group_retry_policy))


def _exponential(policy: Mapping[str, object]) -> v2.ExponentialBackoff:
    values = policy.get("exponentialRetryPolicy")
    own = values if isinstance(values, Mapping) else {}
    initial, longest, multiplier = (
        _delay(own.get(name), default) for name, default in _EXPONENTIAL.items()
    )
    return v2.ExponentialBackoff(
        initial=duration(initial), max=duration(longest), multiplier=multiplier
    )


def _customized(policy: Mapping[str, object]) -> v2.CustomizedBackoff:
    values = policy.get("customizedRetryPolicy")
    own = values.get("next") if isinstance(values, Mapping) else None
    delays = [_delay(value, -1) for value in own] if isinstance(own, list) else []
    is_valid = delays and min(delays) >= 0
    return v2.CustomizedBackoff(next=map(duration, delays if is_valid else DELAY_LEVELS_MS))


def _delay(value: object, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return value if 0 <= value <= _DELAY_MS_MAX else default


def _lite_quota(group: SubscriptionGroup) -> int:
    text = group.attributes.get(LITE_QUOTA_ATTRIBUTE, "")
    return decimal_or(text, _LITE_QUOTA, INT_DIGITS)
