"""Frames are encoded and decoded as in Java, and malformed ones are refused early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kourou.errors import (
    FrameTooLargeError,
    MalformedFrameError,
    MalformedHeaderError,
    ProtocolError,
)
from kourou.protocol.codes import LanguageCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import FRAME_SIZE_MAX, decode_frame, encode_frame, frame_size
from tests.documented_errors import only_raises

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
HEADERS = json.loads((VECTORS / "remoting_headers.json").read_text())
ROUTE_REQUEST = bytes.fromhex("000000810000007d") + (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
ROUTE_REFUSAL = (
    b'{"code":17,"flag":1,"language":"JAVA","opaque":7,"remark":"no",'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
commands = st.builds(
    RemotingCommand,
    code=int32,
    ext_fields=st.dictionaries(texts, texts, max_size=4),
    body=st.binary(max_size=64),
    opaque=int32,
    flag=int32,
    language=st.sampled_from(LanguageCode),
    version=int32,
    remark=st.none() | texts,
)


def framed(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """Return the frame without its length field."""
    return bytes((serialize_type,)) + len(header).to_bytes(3, "big") + header + body


def test_request_is_encoded_like_javas() -> None:
    command = RemotingCommand(105, {"topic": "T"}, opaque=7, version=479)

    assert encode_frame(command) == ROUTE_REQUEST
    assert decode_frame(ROUTE_REQUEST[4:]) == command


def test_response_without_fields_is_encoded_like_javas() -> None:
    command = RemotingCommand(
        17, flag=1, language=LanguageCode.JAVA, opaque=7, remark="no", version=479
    )

    assert encode_frame(command)[4:] == framed(ROUTE_REFUSAL)
    assert decode_frame(framed(ROUTE_REFUSAL)) == command


def test_request_has_the_fields_member_even_if_it_is_empty() -> None:
    assert b'"extFields":{}' in encode_frame(RemotingCommand(34))
    assert b"extFields" not in encode_frame(RemotingCommand(0, flag=1))


@given(commands)
def test_encoded_command_decodes_to_the_same(command: RemotingCommand) -> None:
    frame = encode_frame(command)

    assert frame_size(frame) == len(frame) - 4
    assert decode_frame(frame[4:]) == command
    assert decode_frame(memoryview(bytearray(frame))[4:]) == command


def test_decoded_body_is_a_copy() -> None:
    buffer = bytearray(encode_frame(RemotingCommand(10, body=b"body")))
    command = decode_frame(memoryview(buffer)[4:])
    buffer[:] = bytes(len(buffer))

    assert command.body == b"body"


@pytest.mark.parametrize("case", HEADERS["commands"], ids=lambda c: str(c["decoded"])[:60])
def test_commands_are_decoded_and_encoded_as_in_java(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["hex"])
    command = decode_frame(frame[4:])
    expected = case["decoded"]

    assert command.code == expected["code"]
    assert command.flag == expected["flag"]
    assert command.remark == expected["remark"]
    assert command.language.name == expected["language"]
    assert command.version == expected["version"]
    assert command.opaque == expected["opaque"]
    assert command.ext_fields == (expected["fields"] or {})
    assert command.body == bytes.fromhex(expected["body_hex"] or "")
    assert decode_frame(encode_frame(command)[4:]) == command


# fastjson accepts single quotes; no client writes them, so they are refused here.
TOLERATED_BY_JAVA_ALONE = "{'code':105}"


@pytest.mark.parametrize("case", HEADERS["decode_edges"], ids=lambda c: c["as_text"][:60])
def test_malformed_headers_are_decoded_as_in_java(case: dict[str, Any]) -> None:
    data, expected = bytes.fromhex(case["after_length_hex"]), case["result"]
    if "error" in expected or TOLERATED_BY_JAVA_ALONE in case["as_text"]:
        with pytest.raises(ProtocolError):
            decode_frame(data)
        return
    command = decode_frame(data)

    assert command.code == expected["code"]
    assert command.flag == expected["flag"]
    assert command.body == bytes.fromhex(expected["body_hex"])
    # Java represents an unknown language and a null field as null; here neither is None.
    assert command.language.name == expected["language"].replace("null", "OTHER")
    fields = {name: text for name, text in (expected["fields"] or {}).items() if text is not None}
    assert command.ext_fields == fields


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'{"code":"105","opaque":"-7"}', RemotingCommand(105, opaque=-7)),
        (b'{"code":105,"version":"513","x":1}', RemotingCommand(105, version=513)),
        (b'{"code":105,"remark":5}', RemotingCommand(105, remark="5")),
        (b'{"code":105,"remark":""}', RemotingCommand(105, remark="")),
        (b'{"code":105,"remark":"r","flag":null}', RemotingCommand(105, remark="r")),
        (b'{"extFields":{"a":1.5,"b":true}}', RemotingCommand(0, {"a": "1.5", "b": "true"})),
        (b'{"extFields":{"a":null},"code":1}', RemotingCommand(1)),
        (b'{"code":1,"serializeTypeCurrentRPC":null}', RemotingCommand(1)),
    ],
)
def test_members_of_other_types_are_coerced(header: bytes, expected: RemotingCommand) -> None:
    expected.language = LanguageCode.JAVA
    if b"version" not in header:
        expected.version = 0

    assert decode_frame(framed(header)) == expected


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        (b'"GO"', LanguageCode.GO),
        (b"9", LanguageCode.GO),
        (b'"RUSTY"', LanguageCode.OTHER),
        (b"99", LanguageCode.OTHER),
        (b"null", LanguageCode.OTHER),
        (b"true", LanguageCode.OTHER),
        (b"[1]", LanguageCode.OTHER),
    ],
)
def test_language_is_decoded_from_name_or_number(language: bytes, expected: LanguageCode) -> None:
    assert decode_frame(framed(b'{"language":' + language + b"}")).language is expected


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "a JSON list, not an object"),
        (b"null", "not an object"),
        (b"{", "not JSON"),
        (b'{"code":1}x', "not JSON"),
        (b'{"code":"\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"x":' + b"[" * 100_000, "not JSON"),
        (b'{"extFields":{"a":' + b"[" * 100_000, "not JSON"),
        (b'{"code":4294967296}', "code"),
        (b'{"code":"99999999999999999999"}', "code"),
        (b'{"code":"1_000_000_00"}', "code"),
        (b'{"opaque":true}', "opaque"),
        (b'{"flag":1.5}', "flag"),
        (b'{"version":[]}', "version"),
        (b'{"code":1,"extFields":[]}', "extFields"),
        (b'{"code":1,"extFields":{"a":[1]}}', "header text is a JSON list"),
        (b'{"code":1,"remark":{}}', "header text is a JSON dict"),
    ],
)
def test_invalid_header_is_refused_naming_the_member(header: bytes, reason: str) -> None:
    with pytest.raises(MalformedHeaderError, match=reason):
        decode_frame(framed(header))


def test_number_as_text_is_parsed_as_strictly_as_in_java() -> None:
    for text in (b'"1_0"', b'" 1"', b'"\xd9\xa3"'):
        with pytest.raises(MalformedHeaderError, match="code"):
            decode_frame(framed(b'{"code":' + text + b"}"))


def test_a_frame_of_an_unknown_serialization_is_refused() -> None:
    with pytest.raises(MalformedFrameError, match="serialize type 2"):
        decode_frame(framed(b"{}", serialize_type=2))


@pytest.mark.parametrize("size", range(4))
def test_a_frame_too_short_for_its_header_size_is_refused(size: int) -> None:
    with pytest.raises(MalformedFrameError):
        decode_frame(bytes(size))


def test_a_header_larger_than_its_frame_is_refused() -> None:
    for data in (ROUTE_REQUEST[4:-1], framed(b"{}")[:5], b"\x00\xff\xff\xff"):
        with pytest.raises(MalformedFrameError, match="header of"):
            decode_frame(data)


def test_frame_over_the_limit_is_refused_from_its_length_field() -> None:
    assert frame_size(FRAME_SIZE_MAX.to_bytes(4, "big")) == FRAME_SIZE_MAX
    with pytest.raises(FrameTooLargeError) as caught:
        frame_size((FRAME_SIZE_MAX + 1).to_bytes(4, "big"))
    assert (caught.value.size, caught.value.limit) == (FRAME_SIZE_MAX + 1, FRAME_SIZE_MAX)
    with pytest.raises(FrameTooLargeError):
        frame_size(b"\xff\xff\xff\xff")
    with pytest.raises(FrameTooLargeError):
        frame_size(b"xx\x00\x00\x00\x0b", 2, limit=10)


def test_a_frame_too_small_for_a_header_size_is_refused_by_its_length_field() -> None:
    assert frame_size(b"\x00\x00\x00\x04") == 4
    for size in range(4):
        with pytest.raises(MalformedFrameError):
            frame_size(size.to_bytes(4, "big"))


def test_too_large_frame_is_not_encoded() -> None:
    overhead = len(encode_frame(RemotingCommand(10))) - 4
    body = bytes(FRAME_SIZE_MAX - overhead)

    assert len(encode_frame(RemotingCommand(10, body=body))) == FRAME_SIZE_MAX + 4
    with pytest.raises(FrameTooLargeError):
        encode_frame(RemotingCommand(10, body=body + b"x"))


def test_a_lone_surrogate_in_a_header_is_refused() -> None:
    with pytest.raises(MalformedHeaderError, match="Unicode"):
        encode_frame(RemotingCommand(10, {"a": "\ud800"}))


@given(st.binary(max_size=64))
@example(b"\x00\x00\x00\x02{}")
def test_arbitrary_bytes_raise_only_protocol_errors(data: bytes) -> None:
    for attempt in (data, framed(data), framed(data, serialize_type=1)):
        with only_raises(ProtocolError):
            decode_frame(attempt)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
MEMBERS = ("code", "extFields", "flag", "language", "opaque", "remark", "version")


@given(st.dictionaries(st.sampled_from(MEMBERS), json_values))
def test_arbitrary_members_raise_only_protocol_errors(members: dict[str, Any]) -> None:
    header = json.dumps(members, ensure_ascii=False).encode()
    with only_raises(ProtocolError):
        decode_frame(framed(header))
