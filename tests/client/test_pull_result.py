"""PullResult decodes records into messages, also batches that are stored as one record."""

from __future__ import annotations

import sys

import pytest

from kourou.client.pull_result import PullResult, PullStatus
from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.filter.tags import parse_tags
from kourou.model.properties import encode_properties
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import COMPRESSED
from kourou.protocol.compression import CompressionType
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record.decode import decode_pull_response
from kourou.protocol.record.encode import RecordDraft, encode_record


def pulled(pulled_offset: int, subscription: SubscriptionData | None = None) -> PullResult:
    """Return an answer with one batch, with offsets 10 to 12 and tags a, b and a."""
    items = [
        BatchItem(0, b"%d" % n, b"TAGS\x01%b\x02" % t)
        for n, t in zip((10, 11, 12), (b"a", b"b", b"a"), strict=True)
    ]
    draft = RecordDraft(
        topic=b"T",
        queue_id=0,
        flag=0,
        sys_flag=0xC0,
        born_at_ms=0,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=encode_batch(items),
        properties=encode_properties({"INNER_NUM": "3", "INNER_BASE": "10"}),
    )
    return PullResult(
        MessageQueue("T", "b", 0),
        PullStatus.FOUND,
        next_offset=13,
        min_offset=0,
        max_offset=13,
        raw=encode_record(draft, 10, 0, 0),
        subscription=subscription,
        pulled_offset=pulled_offset,
    )


def test_each_message_of_a_batch_has_its_own_offset() -> None:
    assert [(m.queue_offset, m.body) for m in pulled(10).messages] == [
        (10, b"10"), (11, b"11"), (12, b"12"),
    ]  # fmt: skip


def test_messages_of_a_batch_before_the_pulled_offset_are_skipped() -> None:
    assert [message.queue_offset for message in pulled(11).messages] == [11, 12]


def test_tags_are_those_of_the_messages_of_a_batch() -> None:
    wanted = pulled(10, parse_tags("T", "a")).messages
    assert [message.queue_offset for message in wanted] == [10, 12]


def record(offset: int, body: bytes = b"x", sys_flag: int = 0) -> bytes:
    """Return one record of queue 0 of topic T."""
    draft = RecordDraft(
        topic=b"T",
        queue_id=0,
        flag=0,
        sys_flag=sys_flag,
        born_at_ms=0,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=b"",
    )
    return encode_record(draft, offset, 0, 0)


def wrong_crc(offset: int) -> bytes:
    """Return a record whose body does not match its checksum."""
    data = record(offset, b"as it was")
    return data.replace(b"as it was", b"as it is!")


@pytest.mark.parametrize(
    "bad",
    [
        record(7, b"no batch", 0xC0),
        record(7, b"no zlib stream", CompressionType.ZLIB.sys_flag),
        record(7, b"of no known type", COMPRESSED | 7 << 8),
        wrong_crc(7),
    ],
    ids=["batch", "zlib", "type", "checksum"],
)
def test_unreadable_body_does_not_affect_other_messages(bad: bytes) -> None:
    decoded = decode_pull_response(record(6) + bad + record(8))

    assert [one.queue_offset for one in decoded.messages] == [6, 8]
    [(message, error)] = decoded.undecodable
    assert (message.queue_offset, decoded.resume_offset) == (7, None)
    assert str(error)
    assert decode_pull_response(bad).undecodable[0].message.body == message.body


def test_record_with_unreadable_header_is_left_for_the_next_pull() -> None:
    damaged = bytearray(record(7))
    damaged[4:8] = b"????"

    decoded = decode_pull_response(record(6) + damaged + record(8))

    assert [one.queue_offset for one in decoded.messages] == [6]
    assert (decoded.undecodable, decoded.resume_offset) == ([], 7)
    with pytest.raises(MalformedMessageError):
        decode_pull_response(bytes(damaged) + record(8))


def test_message_with_missing_codec_is_left_for_the_next_pull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    compressed = record(7, b"any", CompressionType.ZSTD.sys_flag)

    decoded = decode_pull_response(record(6) + compressed + record(8))

    assert ([one.queue_offset for one in decoded.messages], decoded.resume_offset) == ([6], 7)
    with pytest.raises(CodecMissingError):
        decode_pull_response(compressed)


def test_pull_continues_after_an_unreadable_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    compressed = record(13, b"any", CompressionType.ZSTD.sys_flag)
    batch = pulled(10).raw.replace(b"TAGS", b"XAGS", 1)  # its checksum is wrong

    decoded = decode_pull_response(batch + compressed)

    [(message, _)] = decoded.undecodable
    assert (message.queue_offset, decoded.resume_offset) == (10, 13)
