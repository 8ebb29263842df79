"""A batch for a topic with batch consume queues: one record, delivered as single messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kourou.model.msgid import decode_offset_msg_id
from kourou.model.topic import TopicConfig
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record.decode import decode_message, decode_messages
from kourou.protocol.sending import SendMessageResponseHeader
from kourou.testing.peers import FakePeer
from kourou.testing.send_rig import SendRig, run_sends

UNIQUE = "UNIQ_KEY\x01u-1\x02WAIT\x01true\x02"
ITEMS = [BatchItem(n, b"body-%d" % n, b"TAGS\x01a\x02") for n in range(3)]


def run_batches(
    test: Callable[[SendRig], Awaitable[None]],
    **options: Any,
) -> None:
    """Run the test on a broker with a topic `B` of batch queues."""

    async def with_topic(bench: SendRig) -> None:
        bench.broker.topics.put(TopicConfig("B", 1, 1, attributes={"queue.type": "BatchCQ"}))
        await test(bench)

    run_sends(with_topic, **options)


async def send_batch(
    bench: SendRig, items: list[BatchItem], properties: str = UNIQUE
) -> SendMessageResponseHeader:
    answer = await bench.send(encode_batch(items), properties, topic="B", batch=True)
    assert answer.code == 0, answer.remark
    return answer.header(SendMessageResponseHeader)


def test_the_answer_names_the_batch_and_its_first_offset() -> None:
    async def test(bench: SendRig) -> None:
        first = await send_batch(bench, ITEMS)
        second = await send_batch(bench, ITEMS[:2], "UNIQ_KEY\x01u-2\x02")
        assert (first.queue_offset, first.batch_uniq_id) == (0, "u-1")
        assert (second.queue_offset, second.batch_uniq_id) == (3, "u-2")
        assert bench.broker.store.reader.max_offset("B", 0) == 5

    run_batches(test)


def test_the_batch_is_one_record_with_javas_flags_and_properties() -> None:
    async def test(bench: SendRig) -> None:
        await send_batch(bench, ITEMS)
        header = await send_batch(bench, ITEMS)
        record = bench.broker.store.reader.read_record(decode_offset_msg_id(header.msg_id)[1])
        assert record is not None
        message = decode_message(record)
        assert message.sys_flag == 0x40 | 0x80
        assert message.body == encode_batch(ITEMS)
        assert message.properties == {
            "CLUSTER": "DefaultCluster",
            "INNER_BASE": "3",
            "INNER_NUM": "3",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "UNIQ_KEY": "u-1",
            "WAIT": "true",
        }

    run_batches(test)


def test_consumers_get_each_message_at_its_own_offset() -> None:
    async def test(bench: SendRig) -> None:
        await send_batch(bench, ITEMS)
        assert (await bench.send(b"single", topic="B")).code == 0
        await send_batch(bench, ITEMS[1:])
        stored = bench.stored("B")
        bodies = [b"body-0", b"body-1", b"body-2", b"single", b"body-1", b"body-2"]
        assert [message.body for message in stored] == bodies
        assert [message.queue_offset for message in stored] == list(range(6))
        assert [message.flag for message in stored] == [0, 1, 2, 0, 1, 2]

    run_batches(test)


def test_a_filter_accepts_whole_batches_up_to_the_requested_count() -> None:
    async def test(bench: SendRig) -> None:
        for unique in ("a", "b", "c"):
            await send_batch(bench, ITEMS, f"UNIQ_KEY\x01{unique}\x02")
        found = []
        for offset, count in ((0, 5), (3, 5), (0, 6)):
            answer = bench.broker.pull(
                FakePeer(),
                topic="B",
                queue_offset=offset,
                max_msg_nums=count,
                expression_type="SQL92",
                subscription="UNIQ_KEY <> 'b'",
            )
            assert answer is not None
            found.append([message.queue_offset for message in decode_messages(answer.body)])
        assert found == [[0, 1, 2], [6, 7, 8], [0, 1, 2, 6, 7, 8]]

    run_batches(test, enable_property_filter=True)


def test_a_batch_without_an_id_of_its_own_is_stored_message_by_message() -> None:
    async def test(bench: SendRig) -> None:
        header = await send_batch(bench, ITEMS, "")
        assert header.batch_uniq_id is None
        assert len(header.msg_id.split(",")) == len(ITEMS)
        assert len(bench.stored("B")) == len(ITEMS)

    run_batches(test)


def test_a_batch_for_a_normal_topic_is_stored_message_by_message() -> None:
    async def test(bench: SendRig) -> None:
        answer = await bench.send(encode_batch(ITEMS), UNIQUE, batch=True)
        header = answer.header(SendMessageResponseHeader)
        assert header.batch_uniq_id is None
        assert [message.sys_flag for message in bench.stored()] == [0, 0, 0]

    run_batches(test)


def test_each_message_of_a_batch_is_counted() -> None:
    async def test(bench: SendRig) -> None:
        await send_batch(bench, ITEMS)
        bench.broker.stats.sample(0)
        assert bench.broker.stats.store.today == (len(ITEMS), 0)

    run_batches(test)


@pytest.mark.parametrize("kind", ["BatchCQ", "SimpleCQ"])
def test_a_recreated_topic_may_have_another_queue_type(kind: str) -> None:
    async def test(bench: SendRig) -> None:
        await send_batch(bench, ITEMS)
        broker = bench.broker
        old = broker.topics.get("B")
        assert old is not None
        broker.topics.delete("B")
        deletion = broker.commit.begin_deletion("B")
        assert deletion is not None
        deletion.note()
        deletion.forget()
        deletion.remove_files()
        deletion.allow()
        broker.topics.put(replace(old, attributes={"queue.type": kind}))
        await bench.send(encode_batch(ITEMS), UNIQUE, topic="B", batch=True)
        expected = "batchconsumequeue" if kind == "BatchCQ" else "consumequeue"
        broker.store.writer.flush(0)
        assert broker.disk.exists(f"{expected}/B/0")
        assert not broker.disk.exists("batchconsumequeue/B") or kind == "BatchCQ"
        assert len(bench.stored("B")) == len(ITEMS)

    run_batches(test)
