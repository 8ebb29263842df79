"""Exchanges recorded between Java programs are decoded and encoded unchanged.

Headers are compared by value, because Java's header fields are in the order of a hash map. Bodies
are compared byte by byte, except for maps, which are in hash order as well: of these, the sorted
bytes and the decoded values are compared.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

import pytest

from kourou.errors import MalformedHeaderError, ProtocolError
from kourou.protocol.command import RemotingCommand, SerializeType
from kourou.protocol.fastjson import loads
from kourou.protocol.fields import encode_fields
from kourou.protocol.frame import decode_frame, encode_frame, frame_size
from kourou.protocol.request_spec import BodyCodec
from kourou.protocol.routes import decode_topic_route, encode_topic_route
from kourou.protocol.unserved import ALL_REQUESTS
from tests.golden_exchanges import Exchange, Side, exchanges

# Requests that are malformed on purpose.
BAD_HEADERS: Final = {
    "310_SEND_MESSAGE_V2_raw-send-no-header_rc1",
    "310_SEND_MESSAGE_V2_raw-send-bad-number_rc1",
    "11_PULL_MESSAGE_raw-pull-missing-header_rc1",
    "15_UPDATE_CONSUMER_OFFSET_raw-update-offset-missing-field_rc29",
}
# Refused before the body is decoded: for its checksum, and for its topic.
BAD_BODIES: Final = {
    "103_REGISTER_BROKER_raw-register-broker-bad-crc_rc1",
    "320_SEND_BATCH_MESSAGE_raw-send-batch-to-retry-topic_rc13",
}
# Requests composed by hand that omit members or contain null; Kourou writes all, and no null.
OTHER_MEMBERS: Final = {
    "46_CHECK_CLIENT_CONFIG_raw-check-client-config-ok",
    "46_CHECK_CLIENT_CONFIG_raw-default-check-client-config-disabled_rc1",
    "200_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_raw-create-group-invalid_rc29",
    "225_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST_raw-create-group-list",
}
# Members of static topics, which are not supported: dropped when decoded, encoded as empty.
STATIC_TOPICS: Final = (
    "mappingDataVersion",
    "topicQueueMappingDetailMap",
    "topicQueueMappingInfoMap",
    "mappingDetail",
    "topicQueueMappingByBroker",
)
# A code that Java truncated to 16 bits, and one that does not exist.
UNKNOWN_CODES: Final = {3442, 9999}
# Fields that hooks add to every request, and one that was misspelled on purpose.
OF_HOOKS: Final = {"AccessKey", "SecurityToken", "Signature", "ReqT", "TIMER_ENGINE_TYPE"}
# Defaults that are encoded although they were not received; Java's servers assume them too.
DEFAULTS: Final[dict[int, dict[str, str]]] = {
    30: {"committed": "true"},
    105: {"topic": ""},
    354: {"checkStoreTime": "0"},
    200053: {"suspend": "false"},
}

EXCHANGES = list(exchanges().values())


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda one: one.name)
def test_exchange_is_decoded_and_encoded_unchanged(exchange: Exchange) -> None:
    for side in exchange.sides:
        command = side.command
        check_frame(side, command)
        check_header(exchange, side, command)
        check_body(exchange, side, command)


def check_frame(side: Side, command: RemotingCommand) -> None:
    """Check that the command equals the recorded one and is equal in both serializations."""
    header = side.header
    assert frame_size(side.frame) == len(side.frame) - 4
    assert command.serialize_type.name == side.serialize
    assert command.code == header["code"]
    assert command.opaque == header["opaque"]
    assert command.flag == header["flag"]
    assert command.language.name == header["language"]
    assert command.version == header["version"]
    assert command.remark == header.get("remark")
    assert command.ext_fields == header.get("extFields", {})

    for serialize_type in SerializeType:
        # A binary header has 16 bits for the code.
        if serialize_type is SerializeType.JSON or command.code < 0x8000:
            other = dataclasses.replace(command, serialize_type=serialize_type)
            assert decode_frame(encode_frame(other)[4:]) == as_read(other)
    ours = encode_frame(command)
    if command.serialize_type is SerializeType.JSON:
        # A command without fields may have an empty member or none.
        fields = {"extFields": command.ext_fields}
        assert json_header(ours) | fields == json_header(side.frame) | fields
        assert sorted(json_header(ours)) == list(json_header(ours))
    else:
        assert sorted(ours) == sorted(side.frame)


def as_read(command: RemotingCommand) -> RemotingCommand:
    """Return the command as decoded by a peer: a binary header has no empty texts."""
    if command.serialize_type is SerializeType.JSON:
        return command
    fields = {name: text for name, text in command.ext_fields.items() if text}
    return dataclasses.replace(command, ext_fields=fields, remark=command.remark or None)


def json_header(frame: bytes) -> dict[str, Any]:
    size = int.from_bytes(frame[5:8], "big")
    header: dict[str, Any] = json.loads(frame[8 : 8 + size])
    return header


def check_header(exchange: Exchange, side: Side, command: RemotingCommand) -> None:
    """Check that the fields decode to the registered header and are encoded unchanged."""
    if side.code in UNKNOWN_CODES:
        assert side.code not in ALL_REQUESTS
        return
    spec = ALL_REQUESTS[side.code]
    header_class = spec.header if side is exchange.request else spec.response_header
    read = {name: text for name, text in command.ext_fields.items() if name not in OF_HOOKS}
    if header_class is None:
        assert read == {}
        return
    if side is exchange.request and exchange.name in BAD_HEADERS:
        with pytest.raises(MalformedHeaderError):
            command.header(header_class)
        return
    if command.is_response and command.code != 0 and not (read and has_all(header_class, read)):
        return
    written = encode_fields(command.header(header_class))

    assert written.items() >= read.items()
    extra = {name: text for name, text in written.items() if name not in read}
    assert extra == {} or extra == DEFAULTS[side.code]


def has_all(header_class: type, fields: dict[str, str]) -> bool:
    """Return whether a response with an error code has the header; most have none."""
    try:
        RemotingCommand(0, fields).header(header_class)
    except MalformedHeaderError:
        return False
    return True


def check_body(exchange: Exchange, side: Side, command: RemotingCommand) -> None:
    """Check that the body decodes with the registered codec and is encoded unchanged."""
    if (
        side.code in UNKNOWN_CODES
        or not command.body
        or (command.is_response and command.code != 0)
    ):
        return
    spec = ALL_REQUESTS[side.code]
    codec = spec.request_body if side is exchange.request else spec.response_body
    if codec is None:
        # Only messages have user-defined bodies.
        assert spec.header is not None
        assert "MessageRequestHeader" in spec.header.__name__
        return
    if exchange.name in BAD_BODIES:
        with pytest.raises(ProtocolError):
            codec.decode(command.body)
        return
    value = codec.decode(command.body)
    if codec.encode is None or exchange.name in OTHER_MEMBERS:
        return
    check_same_bytes(written(codec, value, command.body), command.body)


def written(codec: BodyCodec, value: Any, body: bytes) -> bytes:
    """Return the encoded body of the value that was decoded from `body`."""
    if codec.decode is decode_topic_route:
        return encode_topic_route(value, standard=b"{0:" not in body)
    assert codec.encode is not None
    return codec.encode(value)


def check_same_bytes(ours: bytes, theirs: bytes) -> None:
    """Check that the bytes are equal except for the order of maps and sets, and static topics."""
    if ours == theirs:
        return
    if any(name.encode() in theirs for name in STATIC_TOPICS):
        assert without_static_topics(loads(ours)) == without_static_topics(loads(theirs))
        return
    assert sorted(ours) == sorted(theirs)
    assert theirs[:1] not in b"{[" or loads(ours) == loads(theirs)


def without_static_topics(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_static_topics(v) for k, v in value.items() if k not in STATIC_TOPICS}
    return value


def test_nearly_all_requests_were_recorded() -> None:
    recorded = {exchange.code for exchange in EXCHANGES}

    # Used between controllers and containers, and refused by all servers.
    assert {int(code) for code in set(ALL_REQUESTS) - recorded} >= {902, 903, 1001, 1008, 1013}
    assert len(recorded) > 140
