"""Receipt handles of clients equal the recorded ones, and are refused as recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.client.pop_result import popped_offset, read_pop_result
from kourou.errors import CallRefusedError
from kourou.filter.tags import parse_tags
from kourou.protocol.popping.headers import (
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
)
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.proxy import receipts
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import Code
from kourou.proxy.receipts import (
    check_not_expired,
    handle_text,
    offsets_by_checkpoint,
    read_handle,
    send_back_offset,
)
from kourou.proxy.status import error_status
from tests.golden_calls import calls
from tests.golden_exchanges import exchanges

POPPED = "200050_POP_MESSAGE_grpc-ReceiveMessage-"
CHANGED = "200053_CHANGE_MESSAGE_INVISIBLETIME_grpc-ChangeInvisibleDuration-"
HANDLE = ReceiptHandle(0, 1_000, 30_000, 2, "0", "broker-a", 3, 7, 4_206_731)


def recorded_handles(name: str) -> list[str]:
    answers = [parse(v2.ReceiveMessageResponse, data) for data in calls()[name].responses]
    messages = [answer.message for answer in answers if answer.HasField("message")]
    return [message.system_properties.receipt_handle for message in messages]


@pytest.mark.parametrize("case", ["ok", "two-tags", "fifo", "dead-letter-topic"])
def test_handles_of_popped_messages_equal_the_recorded_ones(case: str) -> None:
    exchange = exchanges()[POPPED + case]
    assert exchange.response is not None
    topic = exchange.request.command.header(PopMessageRequestHeader).topic

    popped = read_pop_result(
        exchange.response.command, "broker-a", parse_tags(topic, "*"), "", 0.0
    ).messages
    handles = [
        handle_text(one.checkpoint, popped_offset(one), one.physical_offset) for one in popped
    ]

    assert handles
    assert handles == recorded_handles(f"cluster/ReceiveMessage_{case.replace('-', '_')}")


def test_recorded_handles_round_trip() -> None:
    handles = [
        handle
        for name, call in calls().items()
        if call.rpc == "ReceiveMessage"
        for handle in recorded_handles(name)
    ]

    assert len(handles) > 60
    for handle in handles:
        assert read_handle(handle).encode() == handle


@pytest.mark.parametrize("case", ["ok", "old_handle_again", "zero"])
def test_handle_of_a_change_equals_the_recorded_one(case: str) -> None:
    exchange = exchanges()[f"{CHANGED}{case.replace('_', '-')}"]
    assert exchange.response is not None
    answer = exchange.response.command.header(ChangeInvisibleTimeResponseHeader)
    call = calls()[f"cluster/ChangeInvisibleDuration_{case}"]
    request = parse(v2.ChangeInvisibleDurationRequest, call.request)
    before = read_handle(request.receipt_handle)
    assert before.offset is not None

    changed = before.changed(
        before.offset, answer.pop_time, answer.invisible_time, answer.revive_qid
    )

    recorded = parse(v2.ChangeInvisibleDurationResponse, call.responses[0])
    assert changed.encode() == recorded.receipt_handle


@pytest.mark.parametrize("case", ["bad_handle", "bad_handle_eight_words", "empty_handle"])
def test_malformed_handles_are_refused_as_recorded(case: str) -> None:
    call = calls()[f"cluster/AckMessage_{case}"]
    entry = parse(v2.AckMessageRequest, call.request).entries[0]
    (answer,) = call.responses
    recorded = parse(v2.AckMessageResponse, answer).entries[0].status

    with pytest.raises(CallRefusedError, match="receipt handle is invalid") as refused:
        read_handle(entry.receipt_handle)

    assert error_status(refused.value).code == recorded.code


def test_expired_handles_are_refused_as_recorded() -> None:
    call = calls()["cluster/AckMessage_expired_handle"]
    entry = parse(v2.AckMessageRequest, call.request).entries[0]
    (answer,) = call.responses
    handle = read_handle(entry.receipt_handle)

    check_not_expired(handle, handle.revive_at_ms - 1)
    with pytest.raises(CallRefusedError) as refused:
        check_not_expired(handle, handle.revive_at_ms)

    recorded = parse(v2.AckMessageResponse, answer).entries[0].status
    assert error_status(refused.value) == recorded


def test_handle_without_queue_offset_is_refused() -> None:
    with pytest.raises(CallRefusedError, match="it has no queue offset"):
        read_handle("0 1000 30000 2 0 broker-a 3")


def test_dead_letters_need_the_commit_log_offset() -> None:
    assert send_back_offset(HANDLE) == 4_206_731
    for offset in (None, -1):
        with pytest.raises(CallRefusedError, match="commit log offset is empty") as refused:
            send_back_offset(HANDLE._replace(commit_log_offset=offset))
        assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


@given(
    words=st.lists(
        st.one_of(st.integers(-3, 1 << 70).map(str), st.sampled_from(["", "broker-a", "0", "007"])),
        max_size=11,
    ),
    number=st.integers(1, 9),
)
def test_handles_read_by_checkpoint_are_those_read_alone(words: list[str], number: int) -> None:
    handles = [
        HANDLE._replace(offset=offset, start_offset=offset // 4).encode()
        for offset in range(number)
    ]
    found = offsets_by_checkpoint(handles)
    alone = [read_handle(handle) for handle in handles]
    assert len(found) == (number + 3) // 4
    assert [
        checkpoint._replace(offset=offset, commit_log_offset=HANDLE.commit_log_offset)
        for checkpoint, offsets in found.items()
        for offset in offsets
    ] == alone
    other = " ".join(words)
    for checkpoint, (offset,) in offsets_by_checkpoint([other]).items():
        read = read_handle(other)
        assert (read.offset, read._replace(offset=None, commit_log_offset=None)) == (
            offset, checkpoint,
        )  # fmt: skip
    if not offsets_by_checkpoint([other]):
        assert offsets_by_checkpoint([*handles, other]) == {}


def test_prefixes_that_no_broker_writes_are_not_kept() -> None:
    kept = receipts._checkpoint.cache_info().currsize
    for length in (513, 100_000):
        prefix = f"0 1000 30000 2 0 {'b' * (length - 18)} 3"
        assert offsets_by_checkpoint([f"{prefix} 7 8"]) == {}
    assert receipts._checkpoint.cache_info().currsize == kept
