"""Consumer groups are encoded and decoded as in Java, on the wire and in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.model.group import SubscriptionGroup
from kourou.protocol.data_version import DataVersion
from kourou.protocol.fastjson import loads
from kourou.protocol.groups import (
    SubscriptionGroupTable,
    decode_subscription_group,
    decode_subscription_group_table,
    encode_subscription_group,
    encode_subscription_group_table,
)
from tests.documented_errors import only_raises

CONFIG = Path(__file__).parent.parent / "golden" / "config"
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
longs = st.integers(-(2**63), 2**63 - 1)
groups = st.builds(
    SubscriptionGroup,
    texts,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    longs,
    longs,
    st.just({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000}}),
    longs,
    longs,
    st.booleans(),
    longs,
    longs,
    st.none() | st.just(({"topic": "T"},)),
    st.dictionaries(texts, texts, max_size=2),
)


def test_new_group_is_encoded_like_javas() -> None:
    assert encode_subscription_group(SubscriptionGroup("g", retry_max_times=5)) == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":5,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_group_with_only_a_name_has_defaults() -> None:
    assert decode_subscription_group(b'{"groupName":"g"}') == SubscriptionGroup("g")


@given(groups)
def test_encoded_group_decodes_to_the_same(group: SubscriptionGroup) -> None:
    assert decode_subscription_group(encode_subscription_group(group)) == group


@given(
    st.builds(
        SubscriptionGroupTable,
        st.lists(groups, max_size=2).map(lambda all_: {one.group_name: one for one in all_}),
        st.builds(DataVersion, longs, longs, longs),
        st.dictionaries(texts, st.dictionaries(texts, longs, max_size=2), max_size=2),
    ),
    st.booleans(),
)
def test_encoded_table_decodes_to_the_same(table: SubscriptionGroupTable, pretty: bool) -> None:
    text = encode_subscription_group_table(table, pretty=pretty)

    assert decode_subscription_group_table(text) == table


def test_group_file_of_java_is_decoded_and_encoded_with_the_same_values() -> None:
    text = (CONFIG / "subscriptionGroup.json").read_bytes()
    table = decode_subscription_group_table(text)
    written = encode_subscription_group_table(table, pretty=True)

    assert loads(written) == json.loads(text)
    assert len(written) == len(text)


def test_key_in_the_table_is_the_name_of_the_group() -> None:
    table = decode_subscription_group_table(b'{"subscriptionGroupTable":{"g":{"groupName":"x"}}}')

    assert table.groups == {"g": SubscriptionGroup("g")}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "subscription group must be an object"),
        (b"{}", "groupName is missing"),
        (b'{"groupName":"g","retryMaxTimes":"x"}', "retryMaxTimes"),
        (b'{"groupName":"g","groupRetryPolicy":[]}', "groupRetryPolicy"),
        (b'{"groupName":"g","subscriptionDataSet":[1]}', "subscriptionDataSet"),
        (b'{"groupName":"g","groupRetryPolicy":{"a":' + b"[" * 99 + b"]" * 99 + b"}}", "deeper"),
    ],
)
def test_malformed_group_is_refused_naming_the_member(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedBodyError, match=reason):
        decode_subscription_group(body)


@given(st.binary(max_size=30))
def test_arbitrary_bytes_raise_only_malformed_body_errors(data: bytes) -> None:
    for decode in (decode_subscription_group, decode_subscription_group_table):
        with only_raises(MalformedBodyError):
            decode(data)
