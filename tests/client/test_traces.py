"""Traces of sends and consumption, which clients write if enabled and never wait for."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.client import trace_writer
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.transaction import TransactionState
from kourou.client.trace_writer import BODY_BYTES_MAX, KEYS_BYTES_MAX, TraceEntry, trace_messages
from kourou.errors import (
    ConfigError,
    InvalidTopicError,
    MessageIllegalError,
    QueryNotFoundError,
)
from kourou.model.message import Message, MessageExt
from kourou.protocol.trace_text import (
    ConsumedTrace,
    ConsumingTrace,
    RecallTrace,
    SentTrace,
    TracedKind,
    TracedOutcome,
    TraceRecord,
    TransactionEndTrace,
    decode_traces,
)
from kourou.store.config import StoreConfig
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

TRACES = "RMQ_SYS_TRACE_TOPIC"
TRACING = ProducerConfig(enable_trace=True)
WITHOUT_INDEX = StoreConfig(
    commitlog_segment_bytes=64 * 1024,
    consumequeue_file_bytes=20 * 100,
    message_index_enable=False,
)


async def trace_bodies(cluster: Cluster, topic: str = TRACES) -> list[MessageExt]:
    """Return the messages of the trace topic."""
    async with cluster.pull_consumer("tracing-readers") as reader:
        found: list[MessageExt] = []
        for queue in await reader.fetch_subscribe_message_queues(topic):
            found += (await reader.pull(queue, 0)).messages
        return found


async def traced(cluster: Cluster, topic: str = TRACES) -> list[TraceRecord]:
    """Return all traces, in order of the trace messages."""
    messages = sorted(await trace_bodies(cluster, topic), key=lambda one: one.physical_offset)
    return [record for message in messages for record in decode_traces(message.body)]


def test_send_is_traced_as_by_java() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                message = Message(TOPIC, b"hello", tags="TagA", keys=["k1", "k2"])
                receipt = await producer.send(message)
                delayed = await producer.send(Message(TOPIC, b"x" * 5_000, delay_level=1))
            first, second = await traced(w.cluster)
            host, port = w.cluster.broker_address()
            assert isinstance(first, SentTrace)
            assert first == SentTrace(
                at_ms=first.at_ms,
                region="DefaultRegion",
                group="orders",
                topic=TOPIC,
                msg_id=receipt.msg_id,
                tags="TagA",
                keys="k1 k2",
                store_host=f"{host}:{port}",
                body_bytes=5,
                cost_ms=first.cost_ms,
                kind=TracedKind.NORMAL,
                offset_msg_id=receipt.offset_msg_id,
                is_success=True,
            )
            assert isinstance(second, SentTrace)
            assert (second.msg_id, second.kind) == (delayed.msg_id, TracedKind.DELAY)
            assert second.body_bytes < 200  # the size as sent: compressed
            assert second.tags is None
            (stored,) = await trace_bodies(w.cluster)
            assert set(stored.keys) == {receipt.msg_id, "k1", "k2", delayed.msg_id}
            assert stored.tags is None

    run_virtual(main())


def test_slow_send_is_traced_with_its_start_and_late_sync_as_failure() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                await producer.send(Message(TOPIC, b"first"))
                began_ms = w.cluster.runtime.clock.now_ms()
                w.cluster.flusher().stall()
                receipt = await producer.send(Message(TOPIC, b"late"), timeout_ms=20_000)
                w.cluster.flusher().release()
                assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
            first, late = await traced(w.cluster)
            assert isinstance(first, SentTrace)
            assert isinstance(late, SentTrace)
            assert (first.is_success, late.is_success) == (True, False)
            assert late.cost_ms == pytest.approx(5_000, abs=20)
            assert late.at_ms == pytest.approx(began_ms, abs=2)

    run_virtual(main())


def test_refused_send_is_neither_traced_nor_logged_as_a_broken_hook(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                await producer.send(Message(TOPIC, b"first"))
                with pytest.raises(MessageIllegalError):
                    await producer.send(
                        Message(TOPIC, Random(1).randbytes(20_000))
                    )  # above its limit
            assert len(await traced(w.cluster)) == 1

    run_virtual(main())
    assert not [entry for entry in caplog.records if "send_hook.failed" in entry.getMessage()]


def test_each_message_of_a_batch_is_traced_by_its_id() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                receipts = await producer.send_batch([Message(TOPIC, b"a"), Message(TOPIC, b"bb")])
            records = await traced(w.cluster)
            assert [
                (one.msg_id, one.body_bytes) for one in records if isinstance(one, SentTrace)
            ] == [(receipts[0].msg_id, 1), (receipts[1].msg_id, 2)]

    run_virtual(main())


def test_listener_calls_are_traced_before_and_after() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            await w.send(b"1")
            fails = iter([True, False])

            def listener(_: MessageExt) -> None:
                if next(fails):
                    raise ValueError("not today")

            async with w.consumer(listener, enable_trace=True):
                await w.until(lambda: len(w.received) == 2)
            before, after, again, done = await traced(w.cluster)
            assert isinstance(before, ConsumingTrace)
            assert isinstance(after, ConsumedTrace)
            assert isinstance(again, ConsumingTrace)
            assert isinstance(done, ConsumedTrace)
            assert (before.group, before.region, before.retries) == (
                "consumers",
                "DefaultRegion",
                0,
            )
            assert (after.request_id, after.msg_id) == (before.request_id, before.msg_id)
            assert (after.is_success, after.outcome) == (False, TracedOutcome.EXCEPTION)
            assert (again.msg_id, again.retries) == (before.msg_id, 1)
            assert again.request_id != before.request_id
            assert (done.is_success, done.outcome) == (True, TracedOutcome.SUCCESS)

    run_virtual(main())


def test_polled_messages_are_traced() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            await w.send(b"1")
            config = PullConsumerConfig(enable_trace=True)
            async with w.cluster.pull_consumer("pullers", config) as reader:
                queues = await reader.fetch_subscribe_message_queues(TOPIC)
                await reader.assign(queues)
                for queue in queues:
                    await reader.seek_to_beginning(queue)
                while not await reader.poll(timeout_ms=1_000):
                    pass
            kinds = [type(one) for one in await traced(w.cluster)]
            assert kinds == [ConsumingTrace, ConsumedTrace]

    run_virtual(main())


def test_traces_are_written_after_five_seconds_or_ten_sends() -> None:
    async def main() -> None:
        async with (
            recording(trace_topic_enable=True) as w,
            w.cluster.producer("orders", TRACING) as producer,
        ):
            await producer.send(Message(TOPIC, b"1"))
            await asyncio.sleep(4)
            assert await traced(w.cluster) == []
            await asyncio.sleep(2)
            assert len(await traced(w.cluster)) == 1
            await asyncio.gather(*(producer.send(Message(TOPIC, b"2")) for _ in range(10)))
            await asyncio.sleep(0.5)
            assert len(await traced(w.cluster)) == 11

    run_virtual(main())


def test_missing_trace_topic_is_created_by_the_first_trace() -> None:
    async def main() -> None:
        async with recording() as w:
            config = ProducerConfig(enable_trace=True, trace_topic="OurTraces")
            async with w.cluster.producer("orders", config) as producer:
                await producer.send(Message(TOPIC, b"1"))
            assert len(await traced(w.cluster, "OurTraces")) == 1

    run_virtual(main())


def test_the_trace_topic_itself_is_not_traced() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                await producer.send(Message(TRACES, b"by hand"))
            assert [one.body for one in await trace_bodies(w.cluster)] == [b"by hand"]

    run_virtual(main())


def test_broker_with_traces_disabled_gets_none() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True, trace_on=False) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                await producer.send(Message(TOPIC, b"1"))
            async with w.consumer(enable_trace=True):
                await w.until_received(b"1")
            assert await traced(w.cluster) == []

    run_virtual(main())


def test_sends_do_not_wait_for_failing_traces(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_writer, "WAITING_MAX", 20)

    async def main() -> None:
        async with recording(auto_create_topic_enable=False) as w:
            producer = w.cluster.producer("orders", TRACING)
            await producer.start()
            began_s = asyncio.get_running_loop().time()
            for _ in range(100):
                await producer.send(Message(TOPIC, b"1"))
            assert asyncio.get_running_loop().time() - began_s < 2
            began_s = asyncio.get_running_loop().time()
            await producer.close()
            assert asyncio.get_running_loop().time() - began_s < 5

    run_virtual(main())
    reported = [one.getMessage() for one in caplog.records if "trace.dropped" in one.getMessage()]
    assert reported == [f"trace.dropped topic={TRACES} reason=the queue of traces is full"]


def test_ends_of_transactions_are_traced() -> None:
    def ask(_: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            producer = w.cluster.transaction_producer(ask, config=TRACING)
            async with producer:
                message = Message(TOPIC, b"paid", keys=["k"])
                for state in TransactionState:
                    half = await producer.begin_transaction(message)
                    await producer.end_transaction(half, state)
                await asyncio.sleep(120)  # until the unknown one is checked
            records = await traced(w.cluster)
            halves = [one for one in records if isinstance(one, SentTrace)]
            assert [one.kind for one in halves] == [TracedKind.HALF] * 3
            ends = [one for one in records if isinstance(one, TransactionEndTrace)]
            assert [(one.state, one.is_from_check) for one in ends] == [
                ("COMMIT_MESSAGE", False),
                ("ROLLBACK_MESSAGE", False),
                ("UNKNOW", False),
                ("COMMIT_MESSAGE", True),
            ]
            assert [one.msg_id for one in ends[:3]] == [one.msg_id for one in halves]
            assert {(one.region, one.keys, one.kind) for one in ends} == {
                ("DefaultRegion", "k", TracedKind.COMMIT)
            }
            host, port = w.cluster.broker_address()
            assert {one.store_host for one in ends} == {f"{host}:{port}"}

    run_virtual(main())


def test_recalls_are_traced() -> None:
    async def main() -> None:
        timer = TimerConfig(recall_message_enable=True)
        async with recording(trace_topic_enable=True, timer=timer) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                receipt = await producer.send(Message(TOPIC, b"later", delay_ms=60_000))
                assert receipt.recall_handle
                await producer.recall(TOPIC, receipt.recall_handle)
            sent, recalled = await traced(w.cluster)
            assert isinstance(sent, SentTrace)
            assert sent.kind is TracedKind.DELAY
            assert isinstance(recalled, RecallTrace)
            assert (recalled.msg_id, recalled.topic, recalled.is_success) == (
                receipt.msg_id,
                TOPIC,
                True,
            )

    run_virtual(main())


def test_message_trace_returns_the_steps_in_order() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                receipt = await producer.send(Message(TOPIC, b"1"))
                other = await producer.send(Message(TOPIC, b"2"))
            async with w.consumer(enable_trace=True):
                await w.until_received(b"1", b"2")
            async with w.cluster.admin() as admin:
                steps = await admin.message_trace(receipt.msg_id)
                for unknown in (other.msg_id[:-1], "no-index"):
                    with pytest.raises(QueryNotFoundError, match="has no trace of"):
                        await admin.message_trace(unknown)
            sent, consumed = steps
            assert isinstance(sent.record, SentTrace)
            assert isinstance(consumed.record, ConsumingTrace)
            assert consumed.ended is not None
            assert consumed.ended.request_id == consumed.record.request_id
            assert {step.record.msg_id for step in steps} == {receipt.msg_id}
            assert sent.at_ms <= consumed.at_ms

    run_virtual(main())


def test_missing_index_is_reported_instead_of_a_missing_trace() -> None:
    async def main() -> None:
        async with recording(trace_topic_enable=True, store=WITHOUT_INDEX) as w:
            async with w.cluster.producer("orders", TRACING) as producer:
                receipt = await producer.send(Message(TOPIC, b"1"))
            async with w.cluster.admin() as admin:
                with pytest.raises(QueryNotFoundError, match="messageIndexEnable is false"):
                    await admin.message_trace(receipt.msg_id)

    run_virtual(main())


def _traced(number: int, *, size: int = 0, keys: int = 1, topic: str = "T") -> TraceEntry:
    fields: dict[str, Any] = {"at_ms": 1, "region": "r", "group": "g", "topic": topic}
    record = SentTrace(**fields, msg_id=f"id-{number}", tags="t" * size or None)
    names = tuple(f"{number}-{index}" + "k" * 90 for index in range(keys))
    return TraceEntry(topic, record, names)


def test_trace_messages_have_one_topic_and_respect_their_limits() -> None:
    some = [_traced(number, size=50_000) for number in range(5)]
    some += [_traced(number, topic="U") for number in range(5, 8)]
    messages = list(trace_messages(some, TRACES))
    assert all(len(one.body) <= BODY_BYTES_MAX for one in messages)
    ids = [[record.msg_id for record in decode_traces(one.body)] for one in messages]
    assert ids == [["id-0", "id-1"], ["id-2", "id-3"], ["id-4"], ["id-5", "id-6", "id-7"]]
    many = list(trace_messages([_traced(number, keys=50) for number in range(9)], TRACES))
    assert sum(len(decode_traces(one.body)) for one in many) == 9
    assert all(sum(len(key) + 1 for key in one.keys) <= KEYS_BYTES_MAX for one in many)
    (lone,) = trace_messages([_traced(0, keys=500)], TRACES)
    assert 0 < sum(len(key) + 1 for key in lone.keys) <= KEYS_BYTES_MAX


def test_invalid_trace_config_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        ProducerConfig(trace_topic="no topic")
    with pytest.raises(ConfigError, match="trace_batch_max"):
        ProducerConfig(trace_batch_max=21)
