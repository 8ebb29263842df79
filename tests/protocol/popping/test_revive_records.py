"""Checkpoints and acks have the bytes, keys and times of Java's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kourou.errors import MalformedBodyError
from kourou.protocol.popping.revive_records import (
    NO_ACK_OFFSET,
    RE_PUTS_UNREADABLE,
    AckRecord,
    CheckpointRecord,
    ack_properties,
    buffered_ack_key,
    checkpoint_properties,
    decode_ack,
    decode_checkpoint,
    encode_ack,
    encode_checkpoint,
    re_put_count,
)
from kourou.protocol.popping.topic_names import REVIVE_GROUP, is_of_group, revive_topic
from kourou.protocol.record.decode import decode_message
from tests.protocol.popping.vectors import VECTORS
from tests.store.golden import load

CHECKPOINT = CheckpointRecord(
    topic="GoldenTopic",
    group="golden_group",
    queue_id=3,
    start_offset=100,
    diffs=(0, 1, 3),
    count=3,
    pop_time_ms=1_700_000_000_000,
    invisible_ms=60_000,
    broker_name="broker-a",
    revive_offset=7,
)
BARE = CheckpointRecord("T", "g", 0, 9, (0,), 1, 1, 2)
ACK = AckRecord("GoldenTopic", "golden_group", 3, 100, 1_700_000_000_000, "broker-a", 101)
RECORDS: dict[str, CheckpointRecord | AckRecord] = {
    "check_point": CHECKPOINT,
    "check_point_bare": BARE,
    "check_point_reput": replace(BARE, diffs=None, bits=1, re_puts="2"),
    "ack": ACK,
    "batch_ack": replace(ACK, ack_offset=100, ack_offsets=(100, 101, 103)),
}
BODIES: dict[str, dict[str, str]] = {
    case["kind"]: case for case in VECTORS["records"] if "kind" in case
}
[KEYS] = [case for case in VECTORS["records"] if "kind" not in case]


def encode(record: CheckpointRecord | AckRecord) -> bytes:
    return encode_ack(record) if isinstance(record, AckRecord) else encode_checkpoint(record)


def decode(kind: str, text: str) -> CheckpointRecord | AckRecord:
    return (decode_checkpoint if "check_point" in kind else decode_ack)(text.encode())


def test_vectors_have_all_kinds_of_records() -> None:
    assert BODIES.keys() == RECORDS.keys()


@pytest.mark.parametrize("kind", RECORDS)
def test_record_has_the_bytes_of_java(kind: str) -> None:
    assert encode(RECORDS[kind]) == BODIES[kind]["fastjson2"].encode()


@pytest.mark.parametrize("form", ["fastjson1", "fastjson2"])
@pytest.mark.parametrize("kind", RECORDS)
def test_record_of_either_writer_is_read(kind: str, form: str) -> None:
    assert decode(kind, BODIES[kind][form]) == RECORDS[kind]


def test_keys_and_times_are_those_of_java() -> None:
    batch = replace(ACK, ack_offset=NO_ACK_OFFSET, ack_offsets=(100, 101, 103))

    checkpoint = checkpoint_properties(CHECKPOINT)
    assert checkpoint == {
        "UNIQ_KEY": KEYS["ck_unique_id"],
        "TAGS": "ck",
        "TIMER_DELIVER_MS": str(KEYS["revive_time"] - 1000),
    }
    single = ack_properties(ACK, CHECKPOINT.revive_at_ms)
    assert single == {
        "UNIQ_KEY": KEYS["ack_unique_id"],
        "TAGS": "ack",
        "TIMER_DELIVER_MS": str(KEYS["revive_time"]),
    }
    assert buffered_ack_key(batch) == KEYS["batch_ack_unique_id"]
    of_several = ack_properties(batch, CHECKPOINT.revive_at_ms)
    assert of_several["TAGS"] == "bAck"
    assert of_several["UNIQ_KEY"] == KEYS["ack_unique_id"].replace("@101@", "@-1@")


def recorded() -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield properties and bodies of the revive records that a Java broker stored."""
    golden = load("clean")
    log, topic = golden.log_bytes(), revive_topic("DefaultCluster")
    for record in golden.manifest["records"]:
        if topic in (record["topic"], record["properties"].get("REAL_TOPIC")):
            at = record["physical_offset"]
            message = decode_message(log[at : at + record["size"]])
            yield dict(message.properties), bytes(message.body)


def test_records_of_a_java_broker_are_read_and_written_unchanged() -> None:
    tags = []
    for properties, body in recorded():
        tags.append(properties["TAGS"])
        if properties["TAGS"] == "ck":
            checkpoint = decode_checkpoint(body)
            assert encode_checkpoint(checkpoint) == body
            ours = checkpoint_properties(checkpoint)
        else:
            ack = decode_ack(body)
            assert encode_ack(ack) == body
            ours = ack_properties(ack, 1795227402659 + 600_000)
        assert ours.items() <= properties.items()
    assert sorted(tags) == ["ack"] * 5 + ["ck"] * 5


def test_group_of_a_recorded_retry_message_is_known() -> None:
    assert is_of_group({"ORIGIN_GROUP": "a"}, "a")
    assert not is_of_group({"ORIGIN_GROUP": "a_b"}, "a")
    assert is_of_group({}, "a")
    assert REVIVE_GROUP == "CID_RMQ_SYS_REVIVE_GROUP"


def test_number_of_re_puts_is_read_from_text_and_number() -> None:
    body = b'{"t":"T","c":"g","rp":%b,"so":"5","n":null,"future":[{}]}'

    assert re_put_count(decode_checkpoint(body % b"7")) == 7
    assert re_put_count(decode_checkpoint(body % b'"7"')) == 7
    assert re_put_count(decode_checkpoint(body % b'"x"')) == RE_PUTS_UNREADABLE
    assert re_put_count(BARE) == 0
    assert decode_checkpoint(body % b"7").start_offset == 5


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"7", b"[]", b"{}", b'{"t":"T"}', b'{"t":null,"c":"g"}', b'{"t":1,"c":"g"}'),
        *(b'{"t":"T","c":"g","so":9223372036854775808}', b'{"t":"T","c":"g","so":1.5}'),
        *(b'{"t":"T","c":"g","q":2147483648}', b'{"t":"T","c":"\xff"}', b'{"t":' + b"[" * 100_000),
    ],
)
def test_malformed_record_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_checkpoint(body)
    with pytest.raises(MalformedBodyError):
        decode_ack(body)


@pytest.mark.parametrize("member", [b'"n":128', b'"bm":2147483648', b'"d":[2147483648]', b'"d":5'])
def test_checkpoint_with_a_number_that_java_cannot_hold_is_refused(member: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_checkpoint(b'{"t":"T","c":"g",' + member + b"}")


@given(st.text(), st.text(), st.lists(st.integers(0, 2**31 - 1)), st.booleans())
def test_any_names_and_offsets_survive(
    topic: str, group: str, diffs: list[int], is_suspended: bool
) -> None:
    record = CheckpointRecord(
        topic, group, diffs=tuple(diffs), broker_name=topic, is_suspended=is_suspended
    )
    ack = AckRecord(topic, group, ack_offsets=tuple(diffs))

    assert decode_checkpoint(encode_checkpoint(record)) == record
    assert decode_ack(encode_ack(ack)) == ack
