"""What Java's clients, brokers and name server said to each other is read and said again.

Headers are compared by value, since the order of Java's header fields is that of a hash map. Bodies
are compared byte by byte, but for maps, whose order is a hash map's too: of those the bytes are
compared sorted, and the values as read.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kourou.errors import MalformedHeaderError, MalformedMessageError
from kourou.model.group import ConsumeFromWhere, ConsumeType
from kourou.model.sysflag import COMPRESSED
from kourou.protocol import bodies
from kourou.protocol.command import RemotingCommand
from kourou.protocol.compression import INFLATED_SIZE_MAX, decompress
from kourou.protocol.fastjson import loads
from kourou.protocol.fields import encode_fields
from kourou.protocol.frame import decode_frame, encode_frame, frame_size
from kourou.protocol.headers_consume import PullMessageRequestHeader, PullMessageResponseHeader
from kourou.protocol.headers_send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from kourou.protocol.message_batch import decode_batch, encode_batch
from kourou.protocol.message_layout import decode_messages
from kourou.protocol.registry import REQUESTS

REMOTING = Path(__file__).parent.parent / "golden" / "remoting"
# Requests that were made wrong on purpose.
BAD_HEADERS = {
    "310_SEND_MESSAGE_V2_raw-send-no-header_rc1",
    "310_SEND_MESSAGE_V2_raw-send-bad-number_rc1",
    "11_PULL_MESSAGE_raw-pull-missing-header_rc1",
}
# A batch whose body is none: it is refused for its topic, before anybody looks.
NO_BATCH = "320_SEND_BATCH_MESSAGE_raw-send-batch-to-retry-topic_rc13"
# What Java leaves out or adds of its own, so that our bytes are others for the same values.
OTHER_BYTES = {
    "103_REGISTER_BROKER_broker-start": "mappingDataVersion",
    "103_REGISTER_BROKER_background_rc1": "mappingDataVersion",
    "21_GET_ALL_TOPIC_CONFIG_raw-all-topic-config-page": "mappingDataVersion",
    "200_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_raw-create-group-invalid_rc29": "defaults",
}


class Side(NamedTuple):
    """One command of an exchange."""

    name: str
    code: int
    frame: bytes
    header: dict[str, Any]

    @property
    def is_request(self) -> bool:
        return not self.command.is_response

    @property
    def command(self) -> RemotingCommand:
        return decode_frame(self.frame[4:])


def sides() -> list[Side]:
    exchanges = ((p.stem, json.loads(p.read_text())) for p in sorted(REMOTING.glob("*.json")))
    # Requests that are not served yet are recorded for how they are refused, and read by nobody.
    return [
        Side(name, exchange["code"], raw(side), side["header"])
        for name, exchange in exchanges
        if exchange["code"] in REQUESTS
        for side in (exchange["request"], exchange["response"])
        if side is not None
    ]


def raw(side: dict[str, Any]) -> bytes:
    if "raw_b64" in side:
        return base64.b64decode(side["raw_b64"])
    return zlib.decompress(base64.b64decode(side["raw_zlib_b64"]))


SIDES = sides()


def side_of(name: str, *, request: bool) -> RemotingCommand:
    return next(s.command for s in SIDES if s.name == name and s.is_request == request)


def side_id(side: Side) -> str:
    return f"{side.name}-{'request' if side.is_request else 'response'}"


@pytest.mark.parametrize("side", SIDES, ids=side_id)
def test_a_command_is_read_and_written_again(side: Side) -> None:
    command, header = side.command, side.header

    assert frame_size(side.frame) == len(side.frame) - 4
    assert command.code == header["code"]
    assert command.opaque == header["opaque"]
    assert command.flag == header["flag"]
    assert command.language.name == header["language"]
    assert command.version == header["version"]
    assert command.remark == header.get("remark")
    assert command.ext_fields == header.get("extFields", {})
    ours = json_header(encode_frame(command))
    theirs = json_header(side.frame)
    # A command without fields is written with or without the empty member.
    assert ours | {"extFields": command.ext_fields} == theirs | {"extFields": command.ext_fields}
    assert sorted(ours) == list(ours)
    assert decode_frame(encode_frame(command)[4:]) == command


def json_header(frame: bytes) -> dict[str, Any]:
    size = int.from_bytes(frame[5:8], "big")
    header: dict[str, Any] = json.loads(frame[8 : 8 + size])
    return header


@pytest.mark.parametrize("side", SIDES, ids=side_id)
def test_header_fields_are_read_and_written_again(side: Side) -> None:
    spec, command = REQUESTS[side.code], side.command
    header_class = spec.header if side.is_request else spec.response_header
    if header_class is None or (command.is_response and command.code != 0):
        return
    if side.name in BAD_HEADERS:
        with pytest.raises(MalformedHeaderError):
            command.header(header_class)
        return
    written = encode_fields(command.header(header_class))
    # ReqT is added by a hook of the streaming consumer, to whatever request passes.
    read = {name: text for name, text in command.ext_fields.items() if name != "ReqT"}

    assert written.items() >= read.items()
    # What is written beyond what was read are defaults that Java's servers assume.
    extra = {name: text for name, text in written.items() if name not in read}
    assert extra in ({}, {"topic": ""})


@pytest.mark.parametrize("side", SIDES, ids=side_id)
def test_bodies_are_read_and_written_again(side: Side) -> None:
    spec, command = REQUESTS[side.code], side.command
    decoder = spec.request_body if side.is_request else spec.response_body
    if decoder is None or not command.body or (command.is_response and command.code != 0):
        return
    if side.name == "11_PULL_MESSAGE_pull-every-kind-of-record":
        with pytest.raises(MalformedMessageError, match="lz4"):
            decoder(command.body)
        return
    if side.name == NO_BATCH:
        with pytest.raises(MalformedMessageError):
            decoder(command.body)
        return
    value = decoder(command.body)
    written = encoded(decoder.__name__, value, command.body)
    if written is None or side.name in OTHER_BYTES:
        return

    assert sorted(written) == sorted(command.body)
    if decoder is not decode_batch:
        assert loads(written) == loads(command.body)
    else:
        assert written == command.body


def encoded(decoder: str, value: Any, body: bytes) -> bytes | None:
    """Return the body that we write for what was read from `body`; None for records."""
    if decoder == "decode_batch":
        return encode_batch(value)
    if decoder == "decode_topic_route":
        return bodies.encode_topic_route(value, standard=b"{0:" not in body)
    encode = getattr(bodies, decoder.replace("decode", "encode"), None)
    return None if encode is None else bytes(encode(value))


def test_a_route_is_answered_in_the_form_of_the_version_that_asks() -> None:
    old = side_of("105_GET_ROUTEINFO_BY_TOPIC_raw-route-old-client-version", request=True)
    body = side_of("105_GET_ROUTEINFO_BY_TOPIC_raw-route-old-client-version", request=False).body
    route = bodies.decode_topic_route(body)

    assert old.version < 401
    assert bodies.encode_topic_route(route, standard=False) == body
    assert b"{0:" in body


def test_a_registration_names_the_brokers_topics() -> None:
    body = bodies.decode_register_body(
        side_of("103_REGISTER_BROKER_broker-start", request=True).body
    )

    assert body.table.topics["TBW102"].perm == 7
    assert body.table.topics["BenchmarkTest"].write_queue_nums == 1024
    assert body.table.data_version.timestamp == 1795229133429


def test_a_send_and_its_answer() -> None:
    header = side_of("310_SEND_MESSAGE_V2_send-sync", request=True).header(
        SendMessageRequestHeaderV2
    )
    answer = side_of("310_SEND_MESSAGE_V2_send-sync", request=False).header(
        SendMessageResponseHeader
    )

    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert header.properties is not None
    assert "UNIQ_KEY\x01" in header.properties
    assert answer.queue_id == header.queue_id
    assert len(answer.msg_id) == 32
    assert (answer.region, answer.trace_on) == ("DefaultRegion", "true")


def test_a_compressed_body_of_the_java_client_inflates() -> None:
    command = side_of("310_SEND_MESSAGE_V2_send-compressed-zlib", request=True)
    header = command.header(SendMessageRequestHeaderV2)

    assert header.sys_flag & COMPRESSED
    body = decompress(command.body, header.sys_flag, size_max=INFLATED_SIZE_MAX)
    assert len(body) >= 4096


def test_a_pull_and_the_messages_it_found() -> None:
    command = side_of("11_PULL_MESSAGE_pull-found", request=False)
    header = side_of("11_PULL_MESSAGE_pull-found", request=True).header(PullMessageRequestHeader)
    answer = command.header(PullMessageResponseHeader)
    messages = decode_messages(command.body)

    assert [m.queue_offset for m in messages] == list(
        range(header.queue_offset, answer.next_begin_offset)
    )
    assert {m.topic for m in messages} == {header.topic}
    assert {m.queue_id for m in messages} == {header.queue_id}
    assert all(m.msg_id == m.properties["UNIQ_KEY"] for m in messages)
    assert all(m.physical_offset < m.physical_offset + m.store_size for m in messages)


def test_an_inner_batch_is_taken_apart() -> None:
    messages = decode_messages(side_of("11_PULL_MESSAGE_pull-inner-batch", request=False).body)

    assert len(messages) > 1
    first = messages[0]
    assert [m.queue_offset for m in messages] == [
        first.queue_offset + index for index in range(len(messages))
    ]
    assert len({m.physical_offset for m in messages}) == 1
    assert len({m.body for m in messages}) == len(messages)
    assert len({m.msg_id for m in messages}) == len(messages)


def test_all_kinds_of_records_are_read_when_bodies_stay_compressed() -> None:
    body = side_of("11_PULL_MESSAGE_pull-every-kind-of-record", request=False).body
    messages = decode_messages(body, decompress=False)

    assert sum(m.store_size for m in messages) == len(body)
    assert any(m.sys_flag & COMPRESSED for m in messages)


def test_a_heartbeat_of_a_push_consumer() -> None:
    heartbeat = bodies.decode_heartbeat(
        side_of("34_HEART_BEAT_push-concurrently", request=True).body
    )
    (consumer,) = heartbeat.consumers

    assert consumer.consume_type is ConsumeType.PASSIVELY
    assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    by_topic = {one.topic: one for one in consumer.subscriptions}
    assert by_topic["GoldenPull"].tags_set == {"TagA", "TagB"}
    assert by_topic["%RETRY%golden_push"].sub_string == "*"
