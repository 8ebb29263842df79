"""Topic tables and registrations are encoded and decoded as in Java, in all forms."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.model.topic import TopicConfig
from kourou.protocol.data_version import DataVersion, decode_data_version, encode_data_version
from kourou.protocol.fastjson import loads
from kourou.protocol.json_records import from_json
from kourou.protocol.topic_table import (
    RegisterBody,
    TopicConfigTable,
    decode_register_body,
    decode_topic_config_table,
    encode_register_body,
    encode_topic_config_table,
)
from kourou.protocol.topics import decode_topic_config, encode_topic_config
from tests.documented_errors import only_raises

CONFIG = Path(__file__).parent.parent / "golden" / "config"
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
longs = st.integers(-(2**63), 2**63 - 1)
versions = st.builds(DataVersion, longs, longs, longs)
configs = st.builds(
    TopicConfig,
    texts,
    longs,
    longs,
    longs,
    st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    longs,
    st.booleans(),
    st.dictionaries(texts, texts, max_size=2),
)
tables = st.builds(
    TopicConfigTable,
    st.lists(configs, max_size=3).map(lambda topics: {topic.name: topic for topic in topics}),
    versions,
)
PLAIN = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
    b'"stateVersion":0,"timestamp":2},"mappingDataVersion":{"counter":0,"stateVersion":0,'
    b'"timestamp":0},"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,'
    b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
    b'"writeQueueNums":4}},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)
REGISTRATION = RegisterBody(TopicConfigTable({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 0, 2)))


def sized(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def compressed(
    *topics: bytes, servers: bytes = b"[]", static: bytes = b"\x00\x00\x00\x00"
) -> bytes:
    """Return the compressed form of a registration, as written by RocketMQ 5."""
    version = b'{"counter":1,"stateVersion":0,"timestamp":2}'
    count = len(topics).to_bytes(4, "big")
    return zlib.compress(sized(version) + count + sized(*topics) + sized(servers) + static, 9)


def test_next_version_increments_the_counter() -> None:
    assert DataVersion(1, 5, 2).next(9) == DataVersion(2, 5, 9)


@given(versions)
def test_encoded_version_decodes_to_the_same(version: DataVersion) -> None:
    assert decode_data_version(encode_data_version(version)) == version


@given(configs)
def test_encoded_topic_decodes_to_the_same(config: TopicConfig) -> None:
    assert decode_topic_config(encode_topic_config(config)) == config


@given(tables, st.booleans())
def test_encoded_table_decodes_to_the_same(table: TopicConfigTable, pretty: bool) -> None:
    assert decode_topic_config_table(encode_topic_config_table(table, pretty=pretty)) == table


def test_topics_file_of_java_is_decoded_and_encoded_with_the_same_values() -> None:
    text = (CONFIG / "topics.json").read_bytes()
    table = decode_topic_config_table(text)

    assert table.topics["TBW102"].perm == 7
    assert table.topics["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    written = encode_topic_config_table(table, pretty=True)
    assert loads(written) == json.loads(text)
    assert len(written) == len(text)


def test_key_in_the_table_is_the_name_of_the_topic() -> None:
    table = decode_topic_config_table(b'{"topicConfigTable":{"T":{"topicName":"other"},"U":{}}}')

    assert table.topics == {"T": TopicConfig("T"), "U": TopicConfig("U")}


def test_missing_members_get_defaults_and_filter_type_may_be_an_ordinal() -> None:
    assert from_json(TopicConfig, {"topicName": "T"}, "topic config") == TopicConfig("T")
    assert (
        from_json(
            TopicConfig, {"topicName": "T", "topicFilterType": 1}, "topic config"
        ).topic_filter_type
        == "MULTI_TAG"
    )


def test_registration_is_encoded_like_javas() -> None:
    assert encode_register_body(REGISTRATION) == PLAIN
    assert decode_register_body(PLAIN) == REGISTRATION


@given(st.builds(RegisterBody, tables, st.lists(texts, max_size=2).map(tuple)))
def test_encoded_registration_decodes_to_the_same(body: RegisterBody) -> None:
    assert decode_register_body(encode_register_body(body)) == body


UNUSUAL = [
    (b'"perm":6', b'"perm":"6"'),
    (b'"order":false', b'"order":"false"'),
    (b'"order":false', b'"order":null'),
    (b'"topicFilterType":"SINGLE_TAG"', b'"topicFilterType":0'),
    (b'"topicName":"T"', b'"topicName":"another"'),
    (b'"topicSysFlag":0,', b""),
    (b'"attributes":{}', b'"attributes":null'),
    (b'"attributes":{}', b'"attributes":{"a":null}'),
    (b'"filterServerList":[],', b""),
    (b'{"T":{', b'{ "T" :{'),
]


@pytest.mark.parametrize(("usual", "unusual"), UNUSUAL)
def test_unusual_registration_decodes_to_the_same(usual: bytes, unusual: bytes) -> None:
    assert PLAIN.count(usual) == 1
    assert decode_register_body(PLAIN.replace(usual, unusual)) == REGISTRATION


@pytest.mark.parametrize(
    ("usual", "wrong"),
    [
        (b'"perm":6', b'"perm":6.0'),
        (b'"perm":6', b'"perm":9223372036854775808'),
        (b'"attributes":{}', b'"attributes":{"$ref":"$.a"}'),
        (b'"attributes":{}', b'"attributes":{"a":"\xff"}'),
    ],
)
def test_fast_decoder_refuses_what_the_general_decoder_refuses(usual: bytes, wrong: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_register_body(PLAIN.replace(usual, wrong))


def test_empty_body_has_no_topics() -> None:
    for is_compressed in (False, True):
        assert decode_register_body(b"", compressed=is_compressed) == RegisterBody()


def test_registration_of_a_broker_before_3_0_11_is_only_the_table() -> None:
    body = encode_topic_config_table(REGISTRATION.table)

    assert decode_register_body(body, version=36) == REGISTRATION
    assert decode_register_body(body, version=37) == RegisterBody()


def test_compressed_registration_is_decoded() -> None:
    body = compressed(
        b'T 4 4 6 SINGLE_TAG {"message.type":"FIFO"}',
        b"U 1 2 4 MULTI_TAG {}",
        b"V 8 8 7 SINGLE_TAG",
        servers=b'["10.0.0.9:1"]',
        static=b"\x00\x00\x00\x01" + sized(b'{"topic":"S"}'),
    )

    assert decode_register_body(body, compressed=True, version=413) == RegisterBody(
        TopicConfigTable(
            {
                "T": TopicConfig("T", 4, 4, attributes={"message.type": "FIFO"}),
                "U": TopicConfig("U", 1, 2, 4, "MULTI_TAG"),
                "V": TopicConfig("V", 8, 8, 7),
            },
            DataVersion(1, 0, 2),
        ),
        ("10.0.0.9:1",),
    )


def test_compressed_registration_of_4_x_lacks_static_topics() -> None:
    body = compressed(b"T 4 4 6 SINGLE_TAG {}", static=b"")

    assert decode_register_body(body, compressed=True, version=412).table == REGISTRATION.table
    with pytest.raises(MalformedBodyError, match="truncated"):
        decode_register_body(body, compressed=True, version=413)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"x", "zlib"),
        (zlib.compress(b""), "truncated"),
        (zlib.compress(b"\x00\x00\x00\x05{}"), "size 5"),
        (zlib.compress(b"\xff\xff\xff\xff"), "size -1"),
        (zlib.compress(sized(b"\xff\xff")), "utf-8"),
        (zlib.compress(sized(b"[]")), "data version"),
        (zlib.compress(sized(b"{}") + b"\x7f\xff\xff\xff"), "size 2147483647"),
        (compressed(b"T 4 4 6"), "topic 'T 4 4 6'"),
        (compressed(b"T x 4 6 SINGLE_TAG"), "readQueueNums"),
        (compressed(b" 4 4 6 SINGLE_TAG"), "topicName"),
        (compressed(b"T 4 4 6 SINGLE_TAG []"), "attributes"),
        (compressed(servers=b"{}"), "list"),
        (compressed(servers=b"[1]"), "filter server"),
        (compressed(static=b"\x00\x00\x00\x01" + sized(b"[]")), "static topic"),
    ],
)
def test_malformed_compressed_registration_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedBodyError, match=reason):
        decode_register_body(body, compressed=True)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "topic config must be an object"),
        (b"{}", "topicName is missing"),
        (b'{"topicName":"T","perm":[]}', "perm"),
        (b'{"topicName":"T","order":"x"}', "order"),
        (b'{"topicName":"T","attributes":{"a":1}}', "attributes"),
        (b'{"topicName":"T","topicFilterType":2}', "topicFilterType"),
    ],
)
def test_malformed_topic_is_refused_naming_the_member(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedBodyError, match=reason):
        decode_topic_config(body)


@given(st.binary(max_size=30), st.booleans())
def test_arbitrary_bytes_raise_only_malformed_body_errors(data: bytes, wrap: bool) -> None:
    for attempt in (data, zlib.compress(data), zlib.compress(sized(b"{}") + data)):
        with only_raises(MalformedBodyError):
            decode_register_body(attempt, compressed=wrap)
    for decode in (decode_topic_config, decode_topic_config_table, decode_data_version):
        with only_raises(MalformedBodyError):
            decode(data)


def test_size_of_unusual_registration_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    unusual = PLAIN.replace(
        b'"topicConfigSerializeWrapper"', b'"\\u0074opicConfigSerializeWrapper"'
    )
    unusual = unusual.replace(b"{", b'{"$ref":"",', 1)
    monkeypatch.setattr("kourou.protocol.topic_table.GENERAL_FORM_BYTES_MAX", len(unusual))
    decode_register_body(unusual)
    monkeypatch.setattr("kourou.protocol.topic_table.GENERAL_FORM_BYTES_MAX", len(unusual) - 1)
    with pytest.raises(MalformedBodyError, match="in an unusual form"):
        decode_register_body(unusual)
    assert decode_register_body(PLAIN) == REGISTRATION
