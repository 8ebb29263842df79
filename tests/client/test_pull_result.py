"""PullResult takes batches apart that a broker keeps as one record: each message has its offset."""

from __future__ import annotations

from kourou.client.pull_result import PullResult, PullStatus
from kourou.filter.tags import parse_tags
from kourou.model.properties import encode_properties
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.message_layout import RecordDraft, encode_record


def pulled(asked_offset: int, subscription: SubscriptionData | None = None) -> PullResult:
    """Return the answer that holds one batch, of offsets 10 to 12 with tags a, b and a."""
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
        asked_offset=asked_offset,
    )


def test_each_message_of_a_batch_has_its_own_offset() -> None:
    assert [(m.queue_offset, m.body) for m in pulled(10).messages] == [
        (10, b"10"), (11, b"11"), (12, b"12"),
    ]  # fmt: skip


def test_messages_of_a_batch_before_the_offset_asked_for_are_passed_over() -> None:
    assert [message.queue_offset for message in pulled(11).messages] == [11, 12]


def test_tags_are_those_of_the_messages() -> None:
    wanted = pulled(10, parse_tags("T", "a")).messages
    assert [message.queue_offset for message in wanted] == [10, 12]
