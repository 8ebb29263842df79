"""Heartbeats, consumer lists and subscription checks are encoded and decoded as in Java."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    decode_check_client_config,
    decode_consumer_list,
    decode_heartbeat,
    encode_check_client_config,
    encode_consumer_list,
    encode_heartbeat,
)
from tests.documented_errors import only_raises

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
HEARTBEATS = [c["json"] for c in json.loads((VECTORS / "heartbeat.json").read_text())["cases"]]
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
longs = st.integers(-(2**63), 2**63 - 1)
subscriptions = st.builds(
    SubscriptionData,
    texts,
    texts,
    st.frozensets(texts, max_size=3),
    st.frozensets(longs, max_size=3),
    longs,
    st.sampled_from(["TAG", "SQL92"]),
    st.booleans(),
)
consumers = st.builds(
    ConsumerData,
    texts,
    st.sampled_from(ConsumeType),
    st.sampled_from(MessageModel),
    st.sampled_from(ConsumeFromWhere),
    st.lists(subscriptions, max_size=2).map(tuple),
    st.booleans(),
)
heartbeats = st.builds(
    HeartbeatData,
    texts,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(consumers, max_size=2).map(tuple),
    longs,
    st.booleans(),
)


@pytest.mark.parametrize("text", HEARTBEATS, ids=range(len(HEARTBEATS)))
def test_heartbeat_is_decoded_and_encoded_like_javas(text: str) -> None:
    assert encode_heartbeat(decode_heartbeat(text.encode())) == text.encode()


def test_heartbeat_contains_groups_and_subscriptions() -> None:
    heartbeat = decode_heartbeat(HEARTBEATS[2].encode())

    assert heartbeat.client_id == "10.0.0.2@golden"
    assert heartbeat.producers == ("golden_producer",)
    (consumer,) = heartbeat.consumers
    assert consumer.group == "golden_group"
    assert consumer.consume_type is ConsumeType.PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.LAST_OFFSET
    assert consumer.subscriptions == (
        SubscriptionData(
            "GoldenTopic", "TagA", frozenset({"TagA"}), frozenset({2598919}), 1700000000000
        ),
    )


@given(heartbeats)
def test_encoded_heartbeat_decodes_to_the_same(heartbeat: HeartbeatData) -> None:
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat


def test_nulls_and_enum_ordinals_are_accepted() -> None:
    body = (
        b'{"clientID":"go@1","consumerDataSet":[{"groupName":"g","consumeType":1,'
        b'"messageModel":0,"consumeFromWhere":4,"subscriptionDataSet":[{"topic":"T",'
        b'"tagsSet":null,"codeSet":null,"subVersion":"5","expressionType":""}]}],'
        b'"producerDataSet":null}'
    )

    assert decode_heartbeat(body) == HeartbeatData(
        "go@1",
        (),
        (
            ConsumerData(
                "g",
                ConsumeType.PASSIVELY,
                MessageModel.BROADCASTING,
                ConsumeFromWhere.FIRST_OFFSET,
                (SubscriptionData("T", sub_version=5),),
            ),
        ),
    )
    (consumer,) = decode_heartbeat(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}'
    ).consumers
    assert consumer == ConsumerData("g")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "heartbeat must be an object"),
        (b"{}", "clientID is missing"),
        (b'{"clientID":""}', "clientID is missing"),
        (b'{"clientID":"c","producerDataSet":[{}]}', "groupName is missing"),
        (b'{"clientID":"c","producerDataSet":["g"]}', "producerDataSet"),
        (b'{"clientID":"c","consumerDataSet":[1]}', "consumerDataSet"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":""}]}', "groupName"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"X"}]}', "'X'"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":3}]}', "consumeType"),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":[[]]}]}',
            "messageModel",
        ),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
            "topic is missing",
        ),
        (
            (
                b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
                b'[{"topic":"T","codeSet":["x"]}]}]}'
            ),
            "codeSet",
        ),
    ],
)
def test_malformed_heartbeat_is_refused_naming_the_member(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedBodyError, match=reason):
        decode_heartbeat(body)


@given(st.lists(texts))
def test_encoded_consumer_list_decodes_to_the_same(client_ids: list[str]) -> None:
    assert decode_consumer_list(encode_consumer_list(client_ids)) == client_ids


def test_consumer_list_has_the_expected_json() -> None:
    assert encode_consumer_list(["a", "b"]) == b'{"consumerIdList":["a","b"]}'
    assert decode_consumer_list(b"{}") == []


@given(st.builds(CheckClientConfig, texts, texts, subscriptions, st.none() | texts))
def test_encoded_check_decodes_to_the_same(check: CheckClientConfig) -> None:
    assert decode_check_client_config(encode_check_client_config(check)) == check


@given(st.binary(max_size=30))
def test_arbitrary_bytes_raise_only_malformed_body_errors(data: bytes) -> None:
    for decode in (decode_heartbeat, decode_consumer_list, decode_check_client_config):
        with only_raises(MalformedBodyError):
            decode(data)
