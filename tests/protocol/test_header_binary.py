"""Binary headers are encoded and decoded as in Java, and equal to JSON headers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedHeaderError, ProtocolError
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import (
    RemotingCommand,
    SerializeType,
    request,
    response,
)
from kourou.protocol.frame import decode_frame, encode_frame, frame_size
from tests.documented_errors import only_raises

PACK = Path(__file__).parent.parent / "golden" / "vectors" / "headers_binary.json.gz"
GOLDEN = json.loads(gzip.decompress(PACK.read_bytes()))
BINARY = SerializeType.ROCKETMQ
REQUEST = bytes.fromhex(
    "00000027 01000021 0069 03 01df 00000007 00000000 00000000 0000000c"
    "0005 746f706963 00000001 54 6869"
)
REFUSAL = bytes.fromhex("0000001b 01000017 0011 00 01df 00000007 00000001 00000002 6e6f 00000000")

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
commands = st.builds(
    RemotingCommand,
    code=int16,
    ext_fields=st.dictionaries(texts, texts, max_size=4),
    body=st.binary(max_size=64),
    opaque=int32,
    flag=int32,
    language=st.sampled_from(LanguageCode),
    version=int16,
    remark=st.none() | texts,
    serialize_type=st.just(BINARY),
)


def framed(header: bytes) -> bytes:
    """Return the frame without its length field."""
    return b"\x01" + len(header).to_bytes(3, "big") + header


def head(*, remark: bytes = bytes(4), fields: bytes = bytes(4)) -> bytes:
    """Return a frame, without its length field, with this remark and fields, sizes included."""
    return framed(bytes.fromhex("0069 03 01df 00000007 00000000") + remark + fields)


def test_request_is_encoded_like_javas() -> None:
    command = RemotingCommand(
        105, {"topic": "T"}, b"hi", opaque=7, version=479, serialize_type=BINARY
    )

    assert encode_frame(command) == REQUEST
    assert decode_frame(REQUEST[4:]) == command


def test_response_is_encoded_like_javas() -> None:
    command = RemotingCommand(
        17,
        flag=1,
        language=LanguageCode.JAVA,
        opaque=7,
        remark="no",
        version=479,
        serialize_type=BINARY,
    )

    assert encode_frame(command) == REFUSAL
    assert decode_frame(REFUSAL[4:]) == command


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["header"] + "-all" * c["filled"])
def test_header_is_equal_in_both_serializations(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["binary_hex"])
    binary = decode_frame(frame[4:])
    as_json = decode_frame(bytes.fromhex(case["json_hex"])[4:])

    assert binary.serialize_type is BINARY
    assert as_json.serialize_type is SerializeType.JSON
    binary.serialize_type = SerializeType.JSON
    # A binary header has no empty texts.
    as_json.ext_fields = {name: text for name, text in as_json.ext_fields.items() if text}
    assert binary == as_json


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["header"] + "-all" * c["filled"])
def test_header_is_encoded_like_javas(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["binary_hex"])
    written = encode_frame(decode_frame(frame[4:]))

    if case["header"] == "ElectMasterRequestHeader" and not case["filled"]:
        # Java writes empty texts, which decode as missing.
        assert b"clusterName\0\0\0\0" in frame
        assert decode_frame(written[4:]) == decode_frame(frame[4:])
    else:
        assert written == frame


@pytest.mark.parametrize("case", GOLDEN["commands"], ids=lambda c: str(c["decoded"])[:60])
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
    assert command.ext_fields == {n: text for n, text in (expected["fields"] or {}).items() if text}
    assert command.body == bytes.fromhex(expected["body_hex"] or "")
    command.ext_fields = {n: t for n, t in (case["fields"] or {}).items() if t is not None}
    assert encode_frame(command) == frame


@pytest.mark.parametrize("case", GOLDEN["decode_edges"], ids=lambda c: c["after_length_hex"])
def test_malformed_headers_are_decoded_as_in_java(case: dict[str, Any]) -> None:
    data, expected = bytes.fromhex(case["after_length_hex"]), case["result"]
    if "error" in expected:
        with pytest.raises(ProtocolError):
            decode_frame(data)
        return
    command = decode_frame(data)

    assert command.code == expected["code"]
    assert command.language.name == expected["language"].replace("null", "OTHER")
    assert command.ext_fields == {}


@given(commands)
def test_encoded_command_decodes_to_the_same(command: RemotingCommand) -> None:
    frame = encode_frame(command)

    assert frame_size(frame) == len(frame) - 4
    assert decode_frame(memoryview(bytearray(frame))[4:]) == command


def test_empty_text_is_decoded_as_none() -> None:
    command = RemotingCommand(105, {"topic": "", "": "x"}, remark="", serialize_type=BINARY)

    decoded = decode_frame(encode_frame(command)[4:])
    assert decoded.ext_fields == {}
    assert decoded.remark is None


def test_the_last_of_equal_names_counts() -> None:
    field = bytes.fromhex("0001 61 00000001 31")
    later = bytes.fromhex("0001 61 00000001 32")
    none = bytes.fromhex("0001 61 00000000")

    assert decode_frame(head(fields=b"\0\0\0\x10" + field + later)).ext_fields == {"a": "2"}
    assert decode_frame(head(fields=b"\0\0\0\x0f" + field + none)).ext_fields == {}


def test_response_has_the_serialization_of_its_request() -> None:
    assert response(RemotingCommand(105, serialize_type=BINARY), 17).serialize_type is BINARY
    assert response(request(105)).serialize_type is SerializeType.JSON


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (framed(bytes(20)), "20 bytes is truncated"),
        (framed(b""), "0 bytes is truncated"),
        (head(remark=b"\0\0\x27\x0f"), "truncated"),
        (head(remark=b"\xff\xff\xff\xff"), "remark of -1 bytes"),
        (head(remark=b"\0\0\0\x01\xff"), "not UTF-8"),
        (head(fields=b"\0\0\0\x01"), "header fields of 1 bytes, but 0 are left"),
        (head(fields=b"\0\0\0\0\0"), "header fields of 0 bytes, but 1 are left"),
        (head(fields=b"\0\0\0\x01\0"), "truncated"),
        (head(fields=b"\0\0\0\x02\0\0"), "truncated"),
        (head(fields=b"\0\0\0\x03\0\x01a"), "truncated"),
        (head(fields=b"\0\0\0\x03\xff\xffa"), "truncated"),
        (head(fields=b"\0\0\0\x07\0\x01a\xff\xff\xff\xff"), "after the header"),
        (head(fields=b"\0\0\0\x07\0\x01a\0\0\0\x01"), "ends 1 bytes after the header"),
        (head(fields=b"\0\0\0\x08\0\x01\xff\0\0\0\x01b"), "not UTF-8"),
        (head(fields=b"\0\0\0\x08\0\x01a\0\0\0\x01\xff"), "not UTF-8"),
    ],
)
def test_inconsistent_header_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedHeaderError, match=reason):
        decode_frame(data)


@pytest.mark.parametrize("size", range(0x21))
def test_truncated_header_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(framed(REQUEST[8 : 8 + size]))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (RemotingCommand(200050), "code 200050 does not fit"),
        (RemotingCommand(32768), "code 32768 does not fit"),
        (RemotingCommand(-32769), "code -32769 does not fit"),
        (RemotingCommand(1, version=32768), "number does not fit"),
        (RemotingCommand(1, opaque=2**31), "number does not fit"),
        (RemotingCommand(1, {"n" * 32768: "x"}), "has 32768 bytes"),
        (RemotingCommand(1, {"a": "\ud800"}), "Unicode"),
        (RemotingCommand(1, remark="\ud800"), "Unicode"),
    ],
)
def test_command_that_does_not_fit_a_binary_header_is_refused(
    command: RemotingCommand, reason: str
) -> None:
    command.serialize_type = BINARY
    with pytest.raises(MalformedHeaderError, match=reason):
        encode_frame(command)


def test_code_truncated_by_java_is_unknown() -> None:
    command = RemotingCommand(RequestCode.POP_MESSAGE & 0xFFFF, serialize_type=BINARY)

    assert decode_frame(encode_frame(command)[4:]).code == 3442


@given(st.binary(max_size=64))
def test_arbitrary_bytes_raise_only_protocol_errors(data: bytes) -> None:
    for attempt in (framed(data), head(fields=len(data).to_bytes(4, "big") + data)):
        with only_raises(ProtocolError):
            decode_frame(attempt)
