"""Settings are answered as recorded, for all kinds of clients and groups."""

from __future__ import annotations

import pytest

from kourou.errors import GrpcError
from kourou.http2.grpc_messages import GrpcStatus
from kourou.model.group import SubscriptionGroup
from kourou.proxy.checks import CallLimits
from kourou.proxy.client_settings import (
    ProducerDefaults,
    answered_settings,
    remembered_settings,
    retry_delay_ms,
)
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.times import duration
from tests.golden_calls import Call, calls

LIMITS = CallLimits()
DEFAULTS = ProducerDefaults()
UNKNOWN_GROUP = "grpc_never"
FIFO_GROUPS = {"grpc_fifo_group"}


def settings_of(call: Call, sender: str) -> list[v2.Settings]:
    commands = [parse(v2.TelemetryCommand, one.data) for one in call.parts if one.sender == sender]
    return [command.settings for command in commands if command.HasField("settings")]


RECORDED = [
    name
    for name, call in calls().items()
    if call.rpc == "Telemetry" and settings_of(call, "server")
]


@pytest.mark.parametrize("name", RECORDED)
def test_settings_are_answered_as_recorded(name: str) -> None:
    call = calls()[name]
    sent, received = settings_of(call, "client"), settings_of(call, "server")

    for settings, expected in zip(sent, received, strict=True):
        group_name = settings.subscription.group.name
        is_known = group_name != UNKNOWN_GROUP
        group = SubscriptionGroup(group_name, consume_message_orderly=group_name in FIFO_GROUPS)
        remembered = remembered_settings(settings, LIMITS)
        answer = answered_settings(remembered, group if is_known else None, LIMITS, DEFAULTS)

        assert answer.SerializeToString() == expected.SerializeToString()


def test_settings_of_neither_kind_are_refused_as_recorded() -> None:
    call = calls()["local/Telemetry_settings_without_pub_sub"]
    (settings,) = settings_of(call, "client")

    with pytest.raises(GrpcError) as refused:
        remembered_settings(settings, LIMITS)

    assert call.grpc_details == refused.value.text
    assert call.grpc_status == GrpcStatus(refused.value.status).name


def consumer(group: SubscriptionGroup | None, settings: v2.Settings | None = None) -> v2.Settings:
    sent = settings or v2.Settings()
    sent.subscription.group.name = "g"
    return answered_settings(remembered_settings(sent, LIMITS), group, LIMITS, DEFAULTS)


def next_ms(settings: v2.Settings) -> list[int]:
    return [one.seconds * 1_000 for one in settings.backoff_policy.customized_backoff.next]


def test_policy_of_the_group_is_answered() -> None:
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 7_000]}}

    answer = consumer(SubscriptionGroup("g", retry_max_times=3, group_retry_policy=policy))

    assert answer.backoff_policy.max_attempts == 4
    assert next_ms(answer) == [1_000, 7_000]


def test_exponential_policy_of_the_group_is_answered() -> None:
    own = {"initial": 2_000, "max": 60_000, "multiplier": 3}
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": own}

    backoff = consumer(SubscriptionGroup("g", group_retry_policy=policy)).backoff_policy

    assert backoff.exponential_backoff == v2.ExponentialBackoff(
        initial=duration(2_000), max=duration(60_000), multiplier=3
    )


@pytest.mark.parametrize("own", [None, 7, {}, {"initial": -1, "max": "x", "multiplier": True}])
def test_incomplete_exponential_policy_has_rocketmqs_values(own: object) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": own}

    backoff = consumer(SubscriptionGroup("g", group_retry_policy=policy)).backoff_policy

    assert backoff.exponential_backoff == v2.ExponentialBackoff(
        initial=duration(5_000), max=duration(7_200_000), multiplier=2
    )


@pytest.mark.parametrize("own", [None, [], {"next": []}, {"next": [1_000, -5]}, {"next": ["1"]}])
def test_invalid_customized_policy_has_rocketmqs_delays(own: object) -> None:
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": own}

    delays = next_ms(consumer(SubscriptionGroup("g", group_retry_policy=policy)))

    assert len(delays) == 18
    assert (delays[0], delays[-1]) == (1_000, 7_200_000)


def test_values_of_the_client_remain_if_its_group_is_unknown() -> None:
    sent = v2.Settings()
    sent.subscription.receive_batch_size = 5
    sent.backoff_policy.max_attempts = 2
    sent.backoff_policy.exponential_backoff.multiplier = 4

    answer = consumer(None, sent)

    assert answer.subscription.receive_batch_size == 5
    assert answer.subscription.long_polling_timeout == duration(20_000)
    assert answer.backoff_policy.max_attempts == 2
    assert answer.backoff_policy.exponential_backoff.multiplier == 4
    assert not answer.backoff_policy.HasField("customized_backoff")


def test_namespaces_and_unknown_fields_are_echoed() -> None:
    data = v2.Settings(
        publishing=v2.Publishing(topics=[v2.Resource(resource_namespace="ns", name="T")])
    ).SerializeToString()
    sent = parse(v2.Settings, data + b"\x4a\x02\x0a\x00")  # field 9 of newer clients

    answer = answered_settings(remembered_settings(sent, LIMITS), None, LIMITS, DEFAULTS)

    assert answer.publishing.topics[0].resource_namespace == "ns"
    assert b"\x4a\x02\x0a\x00" in answer.SerializeToString()


def test_metrics_are_switched_off() -> None:
    sent = v2.Settings(metric=v2.Metric(on=True), publishing=v2.Publishing())

    answer = answered_settings(remembered_settings(sent, LIMITS), None, LIMITS, DEFAULTS)

    assert answer.HasField("metric")
    assert not answer.metric.on


@pytest.mark.parametrize(("quota", "expected"), [("7", 7), ("x", 2_000), ("9" * 30, 2_000)])
def test_quota_of_lite_topics_is_the_groups(quota: str, expected: int) -> None:
    group = SubscriptionGroup("g", attributes={"lite.sub.client.quota": quota})

    assert consumer(group).subscription.lite_subscription_quota == expected


def test_delay_of_the_next_redelivery_follows_the_group() -> None:
    own = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 3, 4]}}

    assert retry_delay_ms(SubscriptionGroup("g", group_retry_policy=own), 0) == 3
    assert retry_delay_ms(SubscriptionGroup("g"), 0) == 10_000
    assert retry_delay_ms(SubscriptionGroup("g"), 99) == 7_200_000
