"""Routes and the name server's tables are encoded and decoded as in Java, in both forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.model.route import QUEUE_NUMS_MAX, BrokerData, QueueData, TopicRoute
from kourou.protocol.kv_config import decode_kv_table, encode_kv_table
from kourou.protocol.routes import (
    ClusterInfo,
    decode_cluster_info,
    decode_topic_route,
    encode_cluster_info,
    encode_topic_route,
)
from kourou.protocol.topics import decode_topic_list, encode_topic_list
from tests.documented_errors import only_raises

LEGACY = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a",'
    b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":'
    b'[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
STANDARD = LEGACY.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":')
ROUTE = TopicRoute(
    (QueueData("a", 4, 4, 6),),
    (BrokerData("C", "a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
brokers = st.builds(
    BrokerData,
    texts,
    texts,
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), texts, max_size=3),
    st.booleans(),
    st.none() | texts,
)
nums = st.integers(0, QUEUE_NUMS_MAX)
routes = st.builds(
    TopicRoute,
    st.lists(
        st.builds(QueueData, texts, nums, nums, st.integers(0, 7), st.integers(0, 3)), max_size=3
    ).map(tuple),
    st.lists(brokers, max_size=3).map(tuple),
    st.none() | st.just("a:4;b:4"),
)


def test_route_is_encoded_like_javas_in_both_forms() -> None:
    assert encode_topic_route(ROUTE, standard=False) == LEGACY
    assert encode_topic_route(ROUTE, standard=True) == STANDARD


def test_route_is_decoded_from_both_forms() -> None:
    assert decode_topic_route(LEGACY) == ROUTE
    assert decode_topic_route(STANDARD) == ROUTE


@given(routes, st.booleans())
def test_encoded_route_decodes_to_the_same(route: TopicRoute, standard: bool) -> None:
    assert decode_topic_route(encode_topic_route(route, standard=standard)) == route


def test_missing_null_and_unknown_members_are_accepted() -> None:
    assert decode_topic_route(b"{}") == TopicRoute((), ())
    body = (
        b'{"brokerDatas":[{"brokerName":"a","zoneName":"z"}],"queueDatas":null,'
        b'"orderTopicConf":"","topicQueueMappingByBroker":{"a":{}},"x":1}'
    )
    assert decode_topic_route(body) == TopicRoute((), (BrokerData("", "a", zone_name="z"),))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"null ]", "not JSON"),
        (b"[]", "route must be an object"),
        (b'{"brokerDatas":[1]}', "brokerDatas"),
        (b'{"brokerDatas":[{"brokerAddrs":{"x":"y"}}]}', "broker id"),
        (b'{"brokerDatas":[{"brokerAddrs":{0:1}}]}', "brokerAddrs"),
        (b'{"queueDatas":[{"readQueueNums":-1}]}', "readQueueNums -1"),
        (b'{"queueDatas":[{"writeQueueNums":65537}]}', "writeQueueNums 65537"),
        (b'{"queueDatas":["a"]}', "queueDatas"),
        (b'{"orderTopicConf":"a"}', "orderTopicConf"),
        (b'{"orderTopicConf":5}', "orderTopicConf"),
    ],
)
def test_malformed_route_is_refused_naming_the_member(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedBodyError, match=reason):
        decode_topic_route(body)


def test_cluster_info_always_has_bare_ids() -> None:
    info = ClusterInfo({"a": BrokerData("C", "a", {0: "10.0.0.1:10911"})}, {"C": ["a"]})

    assert encode_cluster_info(info) == (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a",'
        b'"cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["a"]}}'
    )
    assert decode_cluster_info(encode_cluster_info(info)) == info


@given(
    st.builds(
        ClusterInfo,
        st.dictionaries(texts, brokers, max_size=2),
        st.dictionaries(texts, st.lists(texts, max_size=2), max_size=2),
    )
)
def test_encoded_cluster_info_decodes_to_the_same(info: ClusterInfo) -> None:
    assert decode_cluster_info(encode_cluster_info(info)) == info


@given(st.dictionaries(texts, texts))
def test_encoded_table_decodes_to_the_same(table: dict[str, str]) -> None:
    assert decode_kv_table(encode_kv_table(table)) == table


@given(st.lists(texts), st.none() | texts)
def test_encoded_topic_list_decodes_to_the_same(topics: list[str], broker_addr: str | None) -> None:
    assert decode_topic_list(encode_topic_list(topics, broker_addr=broker_addr)) == topics


def test_lists_and_tables_have_the_expected_json() -> None:
    assert encode_kv_table({"k": "v"}) == b'{"table":{"k":"v"}}'
    assert encode_topic_list(["T1"]) == b'{"topicList":["T1"]}'


@given(st.binary(max_size=30))
def test_arbitrary_bytes_raise_only_malformed_body_errors(data: bytes) -> None:
    for decode in (decode_topic_route, decode_cluster_info, decode_kv_table, decode_topic_list):
        with only_raises(MalformedBodyError):
            decode(data)
