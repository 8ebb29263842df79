"""Receipts of popped messages, and the batches that acknowledge them."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest

from kourou.client.calls_pop import acks_by_broker, requests_of
from kourou.client.pop_result import PoppedMessage, PopResult, read_pop_result
from kourou.errors import MalformedHeaderError
from kourou.filter.tags import parse_tags
from kourou.model.namespace import with_namespace
from kourou.model.properties import encode_properties
from kourou.model.subscription import SubscriptionData
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.popping.headers import BatchAck
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.record.encode import RecordDraft, encode_record

ALL = parse_tags("T", "*")
GROUP = "g"


def record(
    queue_id: int,
    offset: int,
    *,
    topic: str = "T",
    body: bytes = b"x",
    sys_flag: int = 0,
    **properties: str,
) -> bytes:
    """Return one record."""
    draft = RecordDraft(
        topic=topic.encode(),
        queue_id=queue_id,
        flag=0,
        sys_flag=sys_flag,
        born_at_ms=0,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
        reconsume_times=2,
        prepared_transaction_offset=0,
        body=body,
        properties=encode_properties(properties),
    )
    return encode_record(draft, offset, 0, 0)


def popped(
    records: Iterable[bytes],
    starts: str = "",
    *,
    offsets: str = "",
    counts: str = "",
    subscription: SubscriptionData = ALL,
    namespace: str = "",
    pop_time: int = 1_000,
    broker: str = "b",
) -> PopResult:
    """Return the result of a pop with the given records, invisible for 60 s, at 5 s."""
    fields = {
        "popTime": str(pop_time),
        "invisibleTime": "60000",
        "reviveQid": "3",
        "restNum": "0",
        "startOffsetInfo": starts,
        "msgOffsetInfo": offsets,
        "orderCountInfo": counts,
    }
    answer = RemotingCommand(0, fields, b"".join(records), flag=FLAG_RESPONSE)
    return read_pop_result(answer, broker, subscription, namespace, 5.0)


def handle(start: int, queue_id: int, offset: int, kind: str = "0") -> ReceiptHandle:
    return ReceiptHandle(start, 1_000, 60_000, 3, kind, "b", queue_id, offset)


def receipts(result: PopResult) -> list[ReceiptHandle]:
    return [message.receipt for message in result.messages]


def acks_of(messages: Iterable[PoppedMessage]) -> list[BatchAck]:
    """Return the acknowledgements of messages of one broker, all of which fit a batch."""
    by_broker, single = acks_by_broker("", GROUP, messages)
    assert single == []
    (of_one,) = by_broker.values()
    return of_one.acks


def test_each_message_has_the_receipt_of_its_queue_and_offset() -> None:
    records = [record(0, 7), record(1, 3), record(0, 9), record(2, 5)]

    result = popped(records, "0 0 6;0 1 3")

    assert receipts(result) == [
        handle(6, 0, 7), handle(3, 1, 3), handle(6, 0, 9), handle(5, 2, 5),
    ]  # fmt: skip
    first = result.messages[0]
    assert (first.topic, first.broker_name, first.visible_at_s) == ("T", "b", 65.0)
    assert first.reconsume_times == 2


def test_missing_start_offsets_are_those_of_the_first_messages() -> None:
    result = popped([record(0, 9), record(0, 7), record(1, 3)], offsets="0 0 7,9;0 1 3")

    assert receipts(result) == [handle(7, 0, 9), handle(7, 0, 7), handle(3, 1, 3)]


def test_messages_of_a_queue_and_pop_share_a_checkpoint() -> None:
    records = [record(0, 7), record(1, 3), record(0, 9)]

    first, other, second = popped(records, "0 0 6;0 1 3").messages

    assert first.checkpoint is second.checkpoint
    assert first.checkpoint is not other.checkpoint


def test_receipt_of_a_retry_message_is_the_one_that_the_broker_stored_in_it() -> None:
    stored = handle(40, 0, 41, kind="1").encode()
    records = [record(0, 41, POP_CK=stored), record(0, 7), record(0, 8)]

    retried, first, second = popped(records, "0 0 6;1 0 40").messages

    assert retried.receipt == handle(40, 0, 41, kind="1")
    assert [first.receipt, second.receipt] == [handle(6, 0, 7), handle(6, 0, 8)]


def test_user_property_with_the_name_of_the_receipt_is_ignored() -> None:
    forged = handle(0, 0, 0).encode()

    assert receipts(popped([record(0, 7, POP_CK=forged)], "0 0 6")) == [handle(6, 0, 7)]


def test_ordered_pop_counts_earlier_deliveries_by_message_or_queue() -> None:
    result = popped(
        [record(0, 7), record(0, 8), record(1, 3)], "0 0 6;0 1 3", counts="0 qo0%7 4;0 0 1"
    )

    assert [message.reconsume_times for message in result.messages] == [4, 1, 2]


def test_messages_with_another_tag_are_unmatched() -> None:
    records = [record(0, n, TAGS=tag) for n, tag in enumerate(("a", "b", "a"))]

    result = popped(records, "0 0 0", subscription=parse_tags("T", "a"))

    assert [message.queue_offset for message in result.messages] == [0, 2]
    assert [message.receipt for message in result.unmatched] == [handle(0, 0, 1)]


def test_topics_are_plain_names_in_a_namespace() -> None:
    topic = with_namespace("ns", "T")

    (message,) = popped([record(0, 7, topic=topic)], "0 0 6", namespace="ns").messages

    assert (message.topic, message.receipt) == ("T", handle(6, 0, 7))


def test_messages_of_an_inner_batch_have_receipts_of_their_own() -> None:
    body = encode_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"")])
    batch = record(0, 7, body=body, sys_flag=0xC0, INNER_NUM="2", INNER_BASE="7")

    result = popped([batch, record(0, 9)], "0 0 6")

    assert [message.body for message in result.messages] == [b"a", b"b", b"x"]
    assert receipts(result) == [handle(6, 0, 7), handle(6, 0, 8), handle(6, 0, 9)]


@pytest.mark.parametrize(
    ("starts", "offsets"), [("0 0", ""), ("0 0 x", ""), ("0 0 1;0 0 2", ""), ("", "0 0 x")]
)
def test_malformed_offsets_are_refused(starts: str, offsets: str) -> None:
    with pytest.raises(MalformedHeaderError, match="OffsetInfo is invalid"):
        popped([record(0, 7)], starts, offsets=offsets)


def test_copied_message_has_its_receipt() -> None:
    (message,) = popped([record(0, 7)], "0 0 6").messages

    assert copy.copy(message).receipt == message.receipt


def test_changed_receipt_is_that_of_one_message_only() -> None:
    first, second = popped([record(0, 7), record(0, 8)], "0 0 6").messages

    first.receipt = handle(7, 0, 7)._replace(pop_time_ms=2_000)

    assert first.receipt.pop_time_ms == 2_000
    assert second.receipt == handle(6, 0, 8)
    assert [(ack.pop_time, ack.start_offset, ack.bits) for ack in acks_of([first, second])] == [
        (2_000, 7, b"\x01"), (1_000, 6, b"\x04"),
    ]  # fmt: skip


def test_messages_of_a_queue_and_pop_are_acknowledged_by_one_entry() -> None:
    messages = popped([record(q, n) for n in (7, 8, 20) for q in (0, 1)], "0 0 6;0 1 7").messages
    expected = [
        BatchAck(GROUP, "T", "0", start, queue_id, 3, 1_000, 60_000, bits.to_bytes(2, "little"))
        for queue_id, start, bits in ((0, 6, 0b_100_0000_0000_0110), (1, 7, 0b_10_0000_0000_0011))
    ]

    assert acks_of(messages) == expected
    assert acks_of(sorted(messages, key=lambda one: one.queue_id)) == expected
    assert acks_of(map(copy.copy, messages)) == expected


def test_pops_are_acknowledged_apart() -> None:
    messages = [
        *popped([record(0, 7)], "0 0 6").messages,
        *popped([record(0, 8)], "0 0 6", pop_time=2_000).messages,
    ]

    assert [(ack.pop_time, ack.bits) for ack in acks_of(messages)] == [
        (1_000, b"\x02"), (2_000, b"\x04"),
    ]  # fmt: skip


def test_brokers_get_their_own_messages_and_distant_ones_are_single() -> None:
    near = popped([record(0, 7)], "0 0 6").messages
    far, before = popped([record(0, 70_000), record(1, 2)], "0 0 6;0 1 3").messages
    other = popped([record(0, 9)], "0 0 9", broker="c").messages

    by_broker, single = acks_by_broker("", GROUP, [*near, far, before, *other])

    assert single == [far, before]
    assert {name: of_one.messages for name, of_one in by_broker.items()} == {"b": near, "c": other}
    assert [ack.start_offset for ack in by_broker["c"].acks] == [9]


def test_broker_of_single_messages_only_gets_no_batch() -> None:
    far: list[PoppedMessage] = popped([record(0, 70_000)], "0 0 6").messages

    assert acks_by_broker("", GROUP, far) == ({}, far)


def test_large_batches_are_split() -> None:
    messages: list[PoppedMessage] = []
    for pop_time in range(400):
        messages += popped([record(0, 7)], "0 0 6", pop_time=pop_time).messages

    parts = list(requests_of(acks_of(messages)))

    assert len(parts) == 3
    assert [ack.pop_time for part in parts for ack in part] == list(range(400))
