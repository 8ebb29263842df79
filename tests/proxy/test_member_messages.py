"""Members of other proxies: RocketMQ's JSON, and their table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kourou.errors import ProtocolError
from kourou.model.group import ConsumeType
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode
from kourou.proxy.clients import json_of
from kourou.proxy.member_messages import (
    EXPIRY_S,
    REGISTER,
    UNREGISTER,
    LocalMember,
    MemberChange,
    RemoteMembers,
    decode_member_change,
    encode_member_change,
    member_change,
)
from kourou.proxy.pb import v2
from kourou.proxy.times import duration

JAVA = (
    rb'{"channelData":"{\"remoteProxyIp\":\"10.0.0.9\",\"localAddress\":\"10.0.0.9:8080'
    rb"\",\"extendAttribute\":\"[{}]\",\"type\":\"REMOTING\",\"remoteAddress\":\"10.0.0"
    rb'.7:50000\"}","clientId":"10.0.0.7@1","consumeFromWhere":"CONSUME_FROM_LAST_OFFSE'
    rb'T","consumeType":"CONSUME_PASSIVELY","group":"sharers","heartbeatType":"REGISTER'
    rb'","language":"JAVA","lastUpdateTimestamp":1795854420781,"localProxyId":"10.0.0.9'
    rb'%8080%8081","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode'
    rb'":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":5,"tags'
    rb'Set":[],"topic":"Orders"}],"version":513}'
)
"""A message that HeartbeatSyncerData of RocketMQ 5.5.0 wrote, about a member with a heartbeat."""
JAVA_LEFT = (
    rb'{"channelData":"{\"remoteProxyIp\":\"10.0.0.9\",\"localAddress\":\"10.0.0.9:8080'
    rb"\",\"extendAttribute\":\"[{}]\",\"type\":\"REMOTING\",\"remoteAddress\":\"10.0.0"
    rb'.7:50000\"}","clientId":"10.0.0.7@1","group":"sharers","heartbeatType":"UNREGIST'
    rb'ER","language":"JAVA","lastUpdateTimestamp":1795854421005,"localProxyId":"10.0.0'
    rb'.9%8080%8081","version":513}'
)
"""Likewise, about a member that left."""
JAVA_SETTINGS = (
    '{"clientType":"PUSH_CONSUMER","requestTimeout":"3s","subscription":{"group":{"name":"g"},'
    '"subscriptions":[{"topic":{"name":"T"},"expression":{"type":"TAG","expression":"a||b"}}],'
    '"fifo":true,"longPollingTimeout":"20.500s"}}'
)
"""Settings of a gRPC client as RocketMQ 5.5.0 writes them into `extendAttribute`."""
MEMBER = LocalMember(
    "here@1",
    LanguageCode.PYTHON,
    513,
    ConsumerData("sharers", subscriptions=(SubscriptionData("Orders"),)),
    "10.0.0.5:50000",
    "10.0.0.1:8080",
)
PROXY = "10.0.0.1%8080%8081"


def change(kind: str, client_id: str = "there@1") -> MemberChange:
    return MemberChange(kind, client_id, "sharers", "10.0.0.9%8080%8081")


def test_message_of_rocketmq_is_read() -> None:
    found = decode_member_change(JAVA)
    assert (found.heartbeat_type, found.client_id, found.group) == (
        REGISTER, "10.0.0.7@1", "sharers",
    )  # fmt: skip
    assert found.consume_type == ConsumeType.PASSIVELY.value
    assert [one.topic for one in found.subscriptions] == ["Orders"]


def test_message_of_rocketmq_about_a_member_that_left_is_read() -> None:
    found = decode_member_change(JAVA_LEFT)
    assert (found.heartbeat_type, found.client_id) == (UNREGISTER, "10.0.0.7@1")
    assert (found.consume_type, tuple(found.subscriptions)) == (None, ())


def test_message_has_the_fields_that_rocketmq_reads() -> None:
    sent = json.loads(encode_member_change(member_change(REGISTER, MEMBER, PROXY, 1)))
    assert sent.keys() == json.loads(JAVA).keys()
    assert sent["subscriptionDataSet"][0].keys() == (
        json.loads(JAVA)["subscriptionDataSet"][0].keys()
    )
    channel = json.loads(sent["channelData"])
    assert channel.keys() == json.loads(json.loads(JAVA)["channelData"]).keys()
    assert channel["remoteProxyIp"] == "10.0.0.1"
    assert channel["remoteAddress"] == "10.0.0.5:50000"
    assert channel["localAddress"] == "10.0.0.1:8080"
    assert channel["type"] == "REMOTING"
    assert json.loads(channel["extendAttribute"])[0]["topic"] == "Orders"


def test_settings_of_a_grpc_client_are_those_that_rocketmq_writes() -> None:
    expression = v2.FilterExpression(type=v2.FilterType.TAG, expression="a||b")
    entry = v2.SubscriptionEntry(topic=v2.Resource(name="T"), expression=expression)
    subscription = v2.Subscription(
        group=v2.Resource(name="g"),
        fifo=True,
        long_polling_timeout=duration(20_500),
        subscriptions=[entry],
    )
    settings = v2.Settings(
        client_type=v2.ClientType.PUSH_CONSUMER,
        request_timeout=duration(3_000),
        subscription=subscription,
    )
    member = replace(MEMBER, settings=json_of(settings))
    channel = json.loads(member_change(REGISTER, member, PROXY, 1).channel_data or "")
    assert channel["type"] == "GRPC_V2"
    assert json.loads(channel["extendAttribute"]) == json.loads(JAVA_SETTINGS)


def test_settings_out_of_range_are_left_out() -> None:
    settings = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
    settings.request_timeout.seconds = 2**62
    assert json_of(settings) == "{}"


def test_message_about_a_member_that_left_has_no_subscriptions() -> None:
    sent = member_change(UNREGISTER, MEMBER, PROXY, 1)
    assert (sent.subscriptions, sent.consume_type) == ((), None)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"clientId":"a"}'])
def test_malformed_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_member_change(body)


def test_member_is_listed_until_it_leaves() -> None:
    members = RemoteMembers()
    assert members.apply(change(REGISTER), 0)
    assert not members.apply(change(REGISTER), 1)
    assert members.of("sharers", 1) == ["there@1"]
    assert members.apply(change(UNREGISTER), 2)
    assert not members.apply(change(UNREGISTER), 3)
    assert members.of("sharers", 3) == []


def test_member_without_heartbeats_expires() -> None:
    members = RemoteMembers()
    members.apply(change(REGISTER), 0)
    members.apply(change(REGISTER, "there@2"), 1)
    assert members.of("sharers", EXPIRY_S) == ["there@2"]
    assert members.expire(EXPIRY_S) == {"sharers"}
    assert members.expire(EXPIRY_S) == set()
    assert members.of("sharers", 2) == ["there@2"]
