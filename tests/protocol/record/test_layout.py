"""Records are encoded and decoded as in Java, and no record exceeds its buffer."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.errors import (
    CodecMissingError,
    InvalidMessageError,
    MalformedMessageError,
    ProtocolError,
)
from kourou.model.host import Host
from kourou.model.properties import PROPERTIES_SIZE_MAX, decode_properties
from kourou.model.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_V6,
)
from kourou.protocol.compression import compress
from kourou.protocol.hashing import crc32
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record import decode
from kourou.protocol.record.decode import decode_message, decode_messages
from kourou.protocol.record.encode import RecordDraft, encode_record, record_size
from kourou.protocol.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from kourou.protocol.record.read import read_record
from tests.documented_errors import only_raises

VECTORS = Path(__file__).parent.parent.parent / "golden" / "vectors"
GOLDEN = json.loads((VECTORS / "message_encode.json").read_text())
DRAFT = RecordDraft(
    topic=b"T",
    queue_id=1,
    flag=0,
    sys_flag=0,
    born_at_ms=4,
    born_host=("127.0.0.1", 5),
    store_host=("10.0.0.1", 10911),
    reconsume_times=0,
    prepared_transaction_offset=0,
    body=b"hi",
    properties=b"k\x01v\x02",
)
RECORD = bytes.fromhex(
    "00000062daa320a758932aac00000001000000000000000000000002000000000000000300000000"
    "00000000000000047f0000010000000500000000000000060a00000100002a9f00000000"
    "00000000000000000000000268690154"
    "00046b017602"
)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
addresses = st.ip_addresses().filter(lambda a: a.version == 4 or a.ipv4_mapped is None).map(str)
hosts = st.tuples(addresses, int32)
drafts = st.builds(
    RecordDraft,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=31).map(str.encode)
    | st.integers(120, 300).map(lambda size: b"t" * size),
    int32,
    int32,
    st.integers(0, 0xF),
    int64,
    hosts,
    hosts,
    int32,
    int64,
    st.binary(max_size=64),
    st.binary(max_size=64),
)


def encode(draft: RecordDraft) -> bytes:
    return encode_record(draft, 2, 3, 6)


def host_of(text: str) -> Host:
    """Return the host in Java's text `/10.0.0.1:5` or `/[2001:db8::1]:5`."""
    address, _, port = text.removeprefix("/").rpartition(":")
    return str(ip_address(address.strip("[]"))), int(port)


def test_record_is_encoded_and_decoded_like_javas() -> None:
    assert encode(DRAFT) == RECORD
    assert record_size(DRAFT) == len(RECORD) == 98
    message = decode_message(RECORD)

    assert (message.topic, message.body, message.properties) == ("T", b"hi", {"k": "v"})
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (1, 2, 3)
    assert (message.born_at_ms, message.store_at_ms) == (4, 6)
    assert (message.born_host, message.store_host) == (("127.0.0.1", 5), ("10.0.0.1", 10911))
    assert (message.store_size, message.body_crc) == (98, 1486039724)
    assert message.offset_msg_id == "0A00000100002A9F0000000000000003"


@pytest.mark.parametrize(
    "case", [c for c in GOLDEN["cases"] if "decoder_encode_hex" in c], ids=lambda c: c["name"]
)
def test_records_are_encoded_like_those_of_the_java_store(case: dict[str, Any]) -> None:
    given_values = case["input"]
    draft = RecordDraft(
        given_values["topic"].encode(),
        given_values["queueId"],
        given_values["flag"],
        given_values["sysFlag"],
        given_values["bornTimestamp"],
        host_of(given_values["bornHost"]),
        host_of(given_values["storeHost"]),
        given_values["reconsumeTimes"],
        given_values["preparedTransactionOffset"],
        bytes.fromhex(given_values["body_hex"] or ""),
        bytes.fromhex(case["properties_string_hex"]),
    )
    record = encode_record(
        draft,
        given_values["queueOffset"],
        given_values["physicalOffset"],
        given_values["storeTimestamp"],
    )

    assert record.hex() == case["decoder_encode_hex"]


@pytest.mark.parametrize(
    "case",
    GOLDEN["cases"],
    ids=lambda c: c["name"],
)
def test_records_are_decoded_as_in_java(case: dict[str, Any]) -> None:
    expected = case["decoded"]
    message = decode_message(bytes.fromhex(case["store_encoder_hex"]))

    assert message.topic == expected["topic"]
    assert message.queue_id == expected["queueId"]
    assert message.flag == expected["flag"]
    assert message.sys_flag == expected["sysFlag"]
    assert message.queue_offset == expected["queueOffset"]
    assert message.physical_offset == expected["physicalOffset"]
    assert message.born_at_ms == expected["bornTimestamp"]
    assert message.born_host == host_of(expected["bornHost"])
    assert message.store_at_ms == expected["storeTimestamp"]
    assert message.store_host == host_of(expected["storeHost"])
    assert message.reconsume_times == expected["reconsumeTimes"]
    assert message.prepared_transaction_offset == expected["preparedTransactionOffset"]
    assert message.body_crc == expected["bodyCRC"]
    assert message.store_size == expected["storeSize"]
    assert len(message.body) == expected["body_length"]
    assert message.properties == (expected["properties"] or {})
    assert message.offset_msg_id == expected["msgId"] or message.msg_id == expected["msgId"]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["name"])
def test_decoded_records_of_the_java_store_are_encoded_unchanged(
    case: dict[str, Any],
) -> None:
    raw = bytes.fromhex(case["store_encoder_hex"])
    header = read_record(raw, check_crc=True)
    draft = RecordDraft(
        header.topic.encode(),
        header.queue_id,
        header.flag,
        header.sys_flag,
        header.born_at_ms,
        header.born_host,
        header.store_host,
        header.reconsume_times,
        header.prepared_transaction_offset,
        raw[header.body_start : header.body_start + header.body_size],
        raw[header.properties_start : header.properties_start + header.properties_size],
    )

    again = encode_record(draft, header.queue_offset, header.physical_offset, header.store_at_ms)
    assert again == raw


def test_body_with_a_missing_codec_may_stay_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (case,) = [c for c in GOLDEN["cases"] if c["name"] == "compressed_zstd"]
    record = bytes.fromhex(case["store_encoder_hex"])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CodecMissingError, match="zstandard"):
        decode_messages(record)

    assert decode_messages(record, decompress=False)[0].sys_flag & COMPRESSED


@pytest.mark.parametrize(
    "case", GOLDEN["record_sizes"], ids=lambda c: f"{c['version'][-2:]}-{c['sysFlag']}-{c['size']}"
)
def test_sizes_equal_javas(case: dict[str, Any]) -> None:
    draft = replace(
        DRAFT,
        topic=bytes(case["topic"]),
        body=bytes(case["body"]),
        properties=bytes(case["properties"]),
        born_host=("2001:db8::1" if case["sysFlag"] & BORN_HOST_V6 else "10.0.0.1", 1),
        store_host=("2001:db8::2" if case["sysFlag"] & STORE_HOST_V6 else "10.0.0.1", 1),
    )

    # The topic's length decides between v1 and v2; Java's sizes of the other version do not occur.
    is_v2 = len(draft.topic) > 127
    if is_v2 == (case["version"] == "MESSAGE_VERSION_V2"):
        assert record_size(draft) == len(encode(draft)) == case["size"]
    else:
        assert abs(record_size(draft) - case["size"]) == 1


@given(drafts, st.tuples(int64, int64, int64), st.tuples(st.binary(max_size=8), st.binary()))
def test_encoded_draft_within_other_bytes_decodes_to_the_same(
    draft: RecordDraft, placed: tuple[int, int, int], around: tuple[bytes, bytes]
) -> None:
    record = encode_record(draft, *placed)
    buffer = around[0] + record + around[1]
    at = len(around[0])
    queue_offset, physical_offset, store_at_ms = placed
    header = read_record(memoryview(buffer), at, check_crc=True)

    assert len(record) == header.total_size == record_size(draft)
    assert header.magic == (MAGIC_V1 if len(draft.topic) < 128 else MAGIC_V2)
    assert header.body_crc == crc32(draft.body)
    assert (header.queue_offset, header.physical_offset) == (queue_offset, physical_offset)
    assert (header.queue_id, header.flag) == (draft.queue_id, draft.flag)
    assert (header.born_at_ms, header.store_at_ms) == (draft.born_at_ms, store_at_ms)
    assert (header.born_host, header.store_host) == (draft.born_host, draft.store_host)
    assert header.sys_flag & 0xF == draft.sys_flag
    assert header.reconsume_times == draft.reconsume_times
    assert header.prepared_transaction_offset == draft.prepared_transaction_offset
    assert header.topic == draft.topic.decode()
    body_end = header.body_start + header.body_size
    assert buffer[header.body_start : body_end] == draft.body
    properties_end = header.properties_start + header.properties_size
    assert buffer[header.properties_start : properties_end] == draft.properties
    message = decode_message(buffer, at, decompress=False)
    assert message.properties == decode_properties(draft.properties)


def test_encoder_sets_the_address_flags() -> None:
    draft = replace(DRAFT, sys_flag=BORN_HOST_V6 | STORE_HOST_V6 | 0x4)

    assert read_record(encode(draft), check_crc=True).sys_flag == 0x4
    draft = replace(DRAFT, born_host=("2001:db8::1", 1), store_host=("2001:db8::2", 2))
    assert read_record(encode(draft), check_crc=True).sys_flag == BORN_HOST_V6 | STORE_HOST_V6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": b"t" * 32768}, "topic of 32768 bytes"),
        ({"properties": bytes(PROPERTIES_SIZE_MAX + 1)}, "properties of 32768"),
        ({"queue_id": 1 << 31}, "does not fit"),
        ({"flag": -(1 << 31) - 1}, "does not fit"),
        ({"born_at_ms": 1 << 63}, "does not fit"),
        ({"born_host": ("localhost", 1)}, "not an IP address"),
        ({"store_host": ("10.0.0.1", 1 << 31)}, "does not fit"),
    ],
)
def test_draft_that_does_not_fit_a_record_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        encode(replace(DRAFT, **change))


def test_the_largest_topic_and_properties_fit() -> None:
    draft = replace(DRAFT, topic=b"t" * 32767, properties=bytes(PROPERTIES_SIZE_MAX))

    assert len(encode(draft)) == record_size(draft)
    assert read_record(encode(draft), check_crc=True).topic == "t" * 32767


@pytest.mark.parametrize(("size", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)])
def test_topic_of_more_than_127_bytes_needs_a_v2_record(size: int, magic: int) -> None:
    record = encode(replace(DRAFT, topic=b"t" * size))

    header = read_record(record, check_crc=True)
    assert (header.magic, header.topic) == (magic, "t" * size)
    assert len(record) == header.total_size


@pytest.mark.parametrize("size", range(len(RECORD)))
def test_truncated_record_is_refused(size: int) -> None:
    with pytest.raises(MalformedMessageError):
        read_record(RECORD[:size], check_crc=True)
    with pytest.raises(MalformedMessageError):
        decode_messages(RECORD + RECORD[: size or 1])


def test_record_with_ipv6_hosts_truncated_in_its_head_is_refused() -> None:
    record = encode(replace(DRAFT, born_host=("2001:db8::1", 1)))
    with pytest.raises(MalformedMessageError, match="truncated"):
        read_record(record[:95], check_crc=True)


def patched(at: int, layout: str, value: int) -> bytes:
    record = bytearray(RECORD)
    struct.pack_into(layout, record, at, value)
    return bytes(record)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (patched(0, ">i", 97), "sizes do not fit"),
        (patched(0, ">i", 99), "sizes do not fit"),
        (patched(0, ">i", -98), "sizes do not fit"),
        (patched(0, ">i", 0), "sizes do not fit"),
        (patched(4, ">i", MAGIC_BLANK), "magic 0xcbd43194"),
        (patched(4, ">i", 0), "magic 0x0"),
        (patched(4, ">i", MAGIC_V2), "sizes do not fit"),
        (patched(8, ">i", 5), "checksum"),
        (patched(84, ">i", 3), "sizes do not fit"),
        (patched(84, ">i", -1), "sizes do not fit"),
        (patched(84, ">i", 2**31 - 1), "sizes do not fit"),
        (patched(88, ">B", 0), "checksum"),
        (patched(90, ">b", 2), "sizes do not fit"),
        (patched(90, ">b", -1), "sizes do not fit"),
        (patched(90, ">b", 127), "sizes do not fit"),
        (patched(91, ">B", 0xFF), "not UTF-8"),
        (patched(92, ">h", 5), "sizes do not fit"),
        (patched(92, ">h", -1), "sizes do not fit"),
    ],
)
def test_corrupt_record_is_refused_with_a_reason(record: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessageError, match=reason):
        read_record(record, check_crc=True)
    with pytest.raises(MalformedMessageError, match=reason):
        decode_messages(RECORD + record)


def test_checksum_is_verified_only_on_request() -> None:
    damaged = patched(88, ">B", 0)

    assert read_record(damaged, check_crc=False).body_size == 2
    assert decode_message(damaged, check_crc=False).body == b"\0i"


@given(st.lists(drafts, max_size=4))
def test_consecutive_records_are_decoded(drafted: list[RecordDraft]) -> None:
    records = [encode(replace(draft, sys_flag=0)) for draft in drafted]
    messages = decode_messages(memoryview(b"".join(records)))

    assert [m.body for m in messages] == [draft.body for draft in drafted]
    assert [m.store_size for m in messages] == [len(record) for record in records]


def test_compressed_body_is_decompressed_and_the_flag_cleared() -> None:
    body = b"x" * 5000
    draft = replace(DRAFT, body=compress(body), sys_flag=COMPRESSED | COMPRESSION_ZLIB)
    (message,) = decode_messages(encode(draft))

    assert message.body == body
    assert message.sys_flag == COMPRESSION_ZLIB
    assert message.body_crc == crc32(draft.body)
    (kept,) = decode_messages(encode(draft), decompress=False)
    assert kept.body == draft.body
    assert kept.sys_flag & COMPRESSED


def test_bodies_of_one_response_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "DECOMPRESSED_TOTAL_MAX", 10_000)
    record = encode(replace(DRAFT, body=compress(bytes(5000)), sys_flag=COMPRESSED))

    assert len(decode_messages(record * 2)) == 2
    with pytest.raises(MalformedMessageError, match="more than 0 bytes"):
        decode_messages(record * 3)


def inner_batch(*items: BatchItem, sys_flag: int = 0) -> RecordDraft:
    body = encode_batch(items)
    if sys_flag & COMPRESSED:
        body = compress(body)
    return replace(
        DRAFT,
        body=body,
        sys_flag=INNER_BATCH | NEED_UNWRAP | sys_flag,
        reconsume_times=4,
        prepared_transaction_offset=5,
    )


def test_inner_batch_becomes_messages_with_their_own_offsets() -> None:
    draft = inner_batch(BatchItem(7, b"a", b"k\x011\x02"), BatchItem(8, b"b", b""))
    first, second = decode_messages(encode(draft))

    assert (first.flag, first.body, first.properties) == (7, b"a", {"k": "1"})
    assert (second.flag, second.body, second.properties) == (8, b"b", {})
    assert (first.queue_offset, second.queue_offset) == (2, 3)
    assert first.physical_offset == second.physical_offset == 3
    assert (first.reconsume_times, first.prepared_transaction_offset) == (0, 0)
    assert first.store_size == record_size(draft)


def test_compressed_inner_batch_is_decompressed_first() -> None:
    draft = inner_batch(BatchItem(7, b"a", b""), sys_flag=COMPRESSED | COMPRESSION_ZLIB)

    assert [m.body for m in decode_messages(encode(draft))] == [b"a"]


def test_inner_batch_that_stays_compressed_is_not_split() -> None:
    packed = inner_batch(BatchItem(7, b"a", b""), sys_flag=COMPRESSED | COMPRESSION_LZ4)
    (message,) = decode_messages(encode(packed), decompress=False)

    assert message.body == packed.body
    assert decode_message(encode(inner_batch(BatchItem(7, b"a", b"")))).queue_offset == 2


def test_corrupt_inner_batch_is_refused() -> None:
    draft = replace(DRAFT, sys_flag=INNER_BATCH | NEED_UNWRAP)
    with pytest.raises(MalformedMessageError, match="batch entry"):
        decode_messages(encode(draft))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_protocol_errors(data: bytes) -> None:
    with only_raises(ProtocolError):
        decode_messages(data)
    with only_raises(ProtocolError):
        decode_message(data)


@settings(max_examples=300)
@given(st.integers(0, len(RECORD) - 1), st.integers(0, 255), st.integers(0, 3))
def test_changed_byte_raises_only_protocol_errors(at: int, byte: int, kind: int) -> None:
    flags = (0, COMPRESSED, INNER_BATCH | NEED_UNWRAP, COMPRESSED | INNER_BATCH | NEED_UNWRAP)
    record = bytearray(encode(replace(DRAFT, sys_flag=flags[kind])))
    record[at] = byte
    with only_raises(ProtocolError):
        decode_messages(record)
