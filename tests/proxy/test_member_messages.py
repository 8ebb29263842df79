"""Members of other proxies: RocketMQ's JSON, and their table."""

from __future__ import annotations

import json

import pytest

from kourou.errors import ProtocolError
from kourou.model.group import ConsumeType
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode
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

JAVA = json.dumps(
    {
        "channelData": json.dumps({"type": "REMOTING"}),
        "clientId": "10.0.0.7@1",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "group": "sharers",
        "heartbeatType": "REGISTER",
        "language": "JAVA",
        "lastUpdateTimestamp": 1795228880000,
        "localProxyId": "10.0.0.9%8080%8081",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": "*",
                "subVersion": 1795228870000,
                "tagsSet": [],
                "topic": "Orders",
            }
        ],
        "version": 513,
    }
).encode()
"""A message of RocketMQ's proxy: the fields of HeartbeatSyncerData."""
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


def test_message_has_the_fields_that_rocketmq_reads() -> None:
    sent = json.loads(encode_member_change(member_change(REGISTER, MEMBER, PROXY, 1)))
    assert sent.keys() == json.loads(JAVA).keys()
    assert sent["subscriptionDataSet"][0].keys() == (
        json.loads(JAVA)["subscriptionDataSet"][0].keys()
    )
    channel = json.loads(sent["channelData"])
    assert channel["remoteProxyIp"] == "10.0.0.1"
    assert channel["remoteAddress"] == "10.0.0.5:50000"
    assert channel["localAddress"] == "10.0.0.1:8080"
    assert channel["type"] == "REMOTING"
    assert json.loads(channel["extendAttribute"])[0]["topic"] == "Orders"


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
