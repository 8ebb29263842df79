"""Tests of the cursor of a range: progress with each answer, and the losses reported."""

from __future__ import annotations

import dataclasses

import pytest

from kourou.client.pull_result import PullResult, PullStatus
from kourou.errors import DataLossError, ProtocolError
from kourou.model.queue import MessageQueue
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.spark.options import ReadOptions
from kourou.spark.pulls import Cursor, advance_cursor

QUEUE = MessageQueue("flights", "broker-a", 0)
STRICT = ReadOptions(name_server="localhost:9876", topic="flights")
LENIENT = dataclasses.replace(STRICT, fail_on_data_loss=False)
SOME_TAG = dataclasses.replace(STRICT, sub_expression="UA")
HOST = ("127.0.0.1", 10911)


def answer(status: PullStatus, next_offset: int, *offsets: int) -> PullResult:
    """Return an answer of a queue that holds 0 to 100, with messages at `offsets`."""
    draft = RecordDraft(b"flights", 0, 0, 0, 1, HOST, HOST, 0, 0, b"body", b"")
    raw = b"".join(encode_record(draft, offset, offset * 100, 2) for offset in offsets)
    return PullResult(QUEUE, status, next_offset=next_offset, min_offset=0, max_offset=100, raw=raw)


def advance(
    offset: int, until: int, result: PullResult, options: ReadOptions = STRICT
) -> tuple[int, list[int]]:
    """Return the next offset to pull, and the offsets of the returned messages."""
    cursor = Cursor(QUEUE, offset, until)
    messages = advance_cursor(cursor, result, options)
    return cursor.offset, [message.queue_offset for message in messages]


def test_found_messages_advance_the_cursor() -> None:
    assert advance(5, 20, answer(PullStatus.FOUND, 8, 5, 6, 7)) == (8, [5, 6, 7])


def test_messages_beyond_the_end_are_dropped() -> None:
    assert advance(5, 7, answer(PullStatus.FOUND, 9, 5, 6, 7, 8)) == (7, [5, 6])


def test_messages_before_the_requested_offset_are_dropped() -> None:
    # A batch that is stored as one record may begin below the requested offset.
    assert advance(5, 9, answer(PullStatus.FOUND, 7, 4, 5, 6)) == (7, [5, 6])


def test_filtered_range_ends_at_an_offset() -> None:
    assert advance(5, 20, answer(PullStatus.NO_MATCHED_MSG, 20), SOME_TAG) == (20, [])


@pytest.mark.parametrize(
    ("result", "next_offset"),
    [
        (answer(PullStatus.OFFSET_ILLEGAL, 12), 12),
        (answer(PullStatus.OFFSET_ILLEGAL, 30), 20),
        (answer(PullStatus.OFFSET_ILLEGAL, 3), 20),
        (answer(PullStatus.NO_NEW_MSG, 5), 20),
        (answer(PullStatus.NO_MATCHED_MSG, 9), 9),
    ],
    ids=["deleted up to 12", "all deleted", "cut short", "now empty", "records removed"],
)
def test_deleted_offsets_fail_the_read_or_are_skipped(result: PullResult, next_offset: int) -> None:
    with pytest.raises(DataLossError, match=f"of the offsets 5 to {next_offset} .* were deleted"):
        advance(5, 20, result)

    assert advance(5, 20, result, LENIENT) == (next_offset, [])


def test_a_gap_between_messages_found_is_a_loss() -> None:
    result = answer(PullStatus.FOUND, 9, 7, 8)

    with pytest.raises(DataLossError, match="2 of the offsets 5 to 9"):
        advance(5, 20, result)

    assert advance(5, 20, result, LENIENT) == (9, [7, 8])
    assert advance(5, 20, result, SOME_TAG) == (9, [7, 8])


@pytest.mark.parametrize("status", [PullStatus.FOUND, PullStatus.NO_MATCHED_MSG])
def test_answer_without_progress_is_an_error(status: PullStatus) -> None:
    with pytest.raises(ProtocolError, match="the next offset 5"):
        advance(5, 20, answer(status, 5), SOME_TAG)
