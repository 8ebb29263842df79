"""Members of other proxies: RocketMQ's JSON, and their table.

Facts: the messages of RocketMQ's proxy in `golden/vectors/proxy_members.json`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.json_format import Parse

from kourou.errors import ProtocolError
from kourou.model.group import ConsumeType
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode, version_name
from kourou.proxy.clients import json_of
from kourou.proxy.member_messages import (
    EXPIRY_S,
    REGISTER,
    SUBSCRIPTION_BYTES_MAX,
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
RECORDED: Final[list[str]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "vectors" / "proxy_members.json").read_text()
)["messages"]
"""Messages of RocketMQ's proxy about gRPC consumers, as written."""
MUTATIONS: Final = 200
"""Random mutations of each recorded message."""
OTHER_VALUES: Final[tuple[Any, ...]] = (
    None, 7, -1, 1e300, True, "", "x", [], [None], ["x"], {}, {"a": {}},
)  # fmt: skip
"""Values in place of those of the recorded messages."""
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


def recorded(group: str) -> list[MemberChange]:
    """Return the recorded messages about the member of a group."""
    found = [decode_member_change(text.encode()) for text in RECORDED]
    return [one for one in found if one.group == group]


@pytest.mark.parametrize(
    ("group", "language", "kind", "wanted"),
    [
        ("pushers", "JAVA", ConsumeType.PASSIVELY, ("TAG", "a || b", {"a", "b"})),
        ("simple", "PYTHON", ConsumeType.ACTIVELY, ("TAG", "*", set())),
        ("filtering", "PYTHON", ConsumeType.ACTIVELY, (
            "SQL92", "price > 10 AND region = 'eu'", set(),
        )),
    ],
)  # fmt: skip
def test_grpc_consumer_of_rocketmqs_proxy_is_read(
    group: str, language: str, kind: ConsumeType, wanted: tuple[str, str, set[str]]
) -> None:
    *registered, left = recorded(group)

    for one in registered:
        assert (one.heartbeat_type, one.language, one.version) == (REGISTER, language, 513)
        assert one.consume_type == kind.value
        (subscription,) = one.subscriptions
        assert (subscription.topic, subscription.expression_type) == ("Orders", wanted[0])
        assert (subscription.sub_string, set(subscription.tags_set)) == wanted[1:]
    assert (left.heartbeat_type, left.client_id) == (UNREGISTER, registered[0].client_id)
    assert (left.consume_type, tuple(left.subscriptions)) == (None, ())
    assert len({one.local_proxy_id for one in (*registered, left)}) == 1


@pytest.mark.parametrize("group", ["pushers", "simple", "filtering"])
def test_settings_that_rocketmqs_proxy_writes_are_those_that_this_one_would(group: str) -> None:
    last = recorded(group)[-2]
    channel = json.loads(last.channel_data or "")
    settings = Parse(channel["extendAttribute"], v2.Settings())

    (entry,) = settings.subscription.subscriptions
    (subscription,) = last.subscriptions
    assert settings.subscription.group.name == group
    assert not settings.subscription.fifo  # the client's own value, also in an ordered group
    assert (entry.topic.name, entry.expression.expression) == (
        subscription.topic, subscription.sub_string,
    )  # fmt: skip
    assert json.loads(json_of(settings)) == json.loads(channel["extendAttribute"])
    member = replace(MEMBER, settings=json_of(settings))
    own = json.loads(member_change(REGISTER, member, PROXY, 1).channel_data or "")
    assert own.keys() == channel.keys()
    assert own["type"] == channel["type"]


def test_recorded_members_are_connected_clients_of_their_groups() -> None:
    members = RemoteMembers()
    assert members.connection("filtering", 0) is None
    for one in recorded("filtering")[:-1]:
        members.apply(one, 0)

    found = members.connection("filtering", 0)

    assert found is not None
    (member,) = found.connections
    assert member.client_id == recorded("filtering")[0].client_id
    assert re.fullmatch(r"127\.0\.0\.1:\d+", member.client_addr)
    assert (member.language, version_name(member.version)) == (LanguageCode.PYTHON, "V5_5_0")
    assert found.consume_type is ConsumeType.ACTIVELY
    assert found.subscriptions["Orders"].sub_string == "price > 10 AND region = 'eu'"
    assert members.connection("filtering", EXPIRY_S) is None


def test_subscriptions_beyond_their_limit_are_left_out() -> None:
    members = RemoteMembers()
    wanted = (SubscriptionData("Orders", "a" * (SUBSCRIPTION_BYTES_MAX // 4)),)
    for group in ("first", "second"):
        members.apply(replace(change(REGISTER), group=group, subscriptions=wanted), 0)
    connections = [members.connection(group, 0) for group in ("first", "second")]
    assert [one and len(one.connections) for one in connections] == [1, 1]
    assert [one and len(one.subscriptions) for one in connections] == [1, 0]

    members.apply(replace(change(UNREGISTER), group="first"), 0)
    members.apply(replace(change(REGISTER), group="second", subscriptions=wanted), 0)
    again = members.connection("second", 0)
    assert again is not None
    assert list(again.subscriptions) == ["Orders"]


def test_recorded_members_are_listed_until_they_leave() -> None:
    members = RemoteMembers()
    changes = [decode_member_change(text.encode()) for text in RECORDED]

    changed = [members.apply(one, 0) for one in changes]

    lives = {one.client_id: [one.heartbeat_type for one in recorded(one.group)] for one in changes}
    assert changed == [is_new for kinds in lives.values() for is_new in _changes(kinds)]
    assert not any(members.of(one.group, 0) for one in changes)


def _changes(kinds: list[str]) -> list[bool]:
    """Return whether each message of a member changes its group: the first and the last one."""
    return [True, *[False] * (len(kinds) - 2), True]


def damaged() -> Iterator[bytes]:
    """Return recorded messages with cut, lost and changed bytes, and with values of other types."""
    choice = random.Random(1)
    for text in RECORDED:
        body = text.encode()
        for _ in range(MUTATIONS):
            at, end = sorted((choice.randrange(len(body)), choice.randrange(len(body))))
            yield body[:at]
            yield body[:at] + body[end:]
            yield body[:at] + bytes((choice.randrange(256),)) + body[at + 1 :]
        fields = json.loads(text)
        for name in fields:
            for value in OTHER_VALUES:
                yield json.dumps(fields | {name: value}).encode()


def test_damaged_message_is_read_or_refused() -> None:
    members = RemoteMembers()
    refused = 0
    for body in damaged():
        try:
            found = decode_member_change(body)
        except ProtocolError:
            refused += 1
            continue
        members.apply(found, 0)
        connection = members.connection(found.group, 0)
        assert (connection is not None) == bool(members.of(found.group, 0))
    assert refused > MUTATIONS * len(RECORDED)
    members.expire(EXPIRY_S)
    for text in RECORDED:
        change = decode_member_change(text.encode())
        members.apply(change, EXPIRY_S)
        is_listed = change.client_id in members.of(change.group, EXPIRY_S)
        assert is_listed == (change.heartbeat_type == REGISTER)


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


def test_member_that_moved_stays_when_its_former_proxy_tells_that_it_left() -> None:
    members = RemoteMembers()
    former = decode_member_change(JAVA)
    channel = json.loads(former.channel_data or "") | {"remoteProxyIp": "10.0.0.8"}
    moved = replace(former, channel_data=json.dumps(channel))
    assert members.apply(former, 0)
    assert not members.apply(moved, 1)

    assert not members.apply(decode_member_change(JAVA_LEFT), 2)

    assert members.of("sharers", 2) == [former.client_id]
    assert members.apply(replace(moved, heartbeat_type=UNREGISTER), 3)
    assert members.of("sharers", 3) == []


def test_member_with_two_connections_expires_with_the_later_one() -> None:
    members = RemoteMembers()
    former = decode_member_change(JAVA)
    members.apply(former, 0)
    members.apply(replace(former, channel_data=None), 1)
    assert members.of("sharers", 1) == [former.client_id]
    assert members.expire(EXPIRY_S) == set()
    assert members.of("sharers", EXPIRY_S) == [former.client_id]
    assert members.expire(EXPIRY_S + 1) == {"sharers"}


def test_message_of_an_unknown_kind_changes_nothing() -> None:
    members = RemoteMembers()
    assert not members.apply(change("RENEW"), 0)
    assert members.apply(change(REGISTER), 0)
    assert not members.apply(change("RENEW"), 1)
    assert members.of("sharers", 1) == ["there@1"]


def test_member_without_heartbeats_expires() -> None:
    members = RemoteMembers()
    members.apply(change(REGISTER), 0)
    members.apply(change(REGISTER, "there@2"), 1)
    assert members.of("sharers", EXPIRY_S) == ["there@2"]
    assert members.expire(EXPIRY_S) == {"sharers"}
    assert members.expire(EXPIRY_S) == set()
    assert members.of("sharers", 2) == ["there@2"]
