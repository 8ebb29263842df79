"""Refused sends get Java's response code and store nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.model.topic import TIMER_TOPIC, TopicConfig, is_broker_only
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.testing.send_rig import SendRig, message, run_sends

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]

UNIQUE = "UNIQ_KEY\x01u\x02"
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize(
    "name",
    [
        "raw-send-body-too-large_rc13",
        "raw-send-default-topic-missing_rc17",
        "raw-send-empty-body_rc1",
        "raw-send-bad-number_rc1",
        "raw-send-no-header_rc1",
        "raw-send-empty-topic_rc29",
        "raw-send-illegal-topic_rc29",
        "raw-send-not-allowed-topic_rc16",
        "raw-send-properties-too-long_rc13",
        "raw-send-queue-out-of-range_rc29",
        "raw-send-topic-128_rc29",
    ],
)
def test_sends_that_java_refuses_get_the_same_code(golden: Golden, name: str) -> None:
    request, expected = golden(f"310_SEND_MESSAGE_V2_{name}")
    assert expected is not None

    async def test(bench: SendRig) -> None:
        bench.broker.topics.put(TopicConfig("GoldenNormal", 4, 4))
        answer = await bench.ask(request)
        assert answer.code == expected.code
        assert answer.remark
        if answer.code != ResponseCode.SYSTEM_ERROR:
            assert answer.ext_fields == expected.ext_fields == REGION
        assert bench.stored_count() == 0

    run_sends(test)


@pytest.mark.parametrize("code", [10, 310, 320])
@pytest.mark.parametrize("is_fast", [False, True])
def test_topics_reserved_for_the_broker_refuse_sends(code: int, is_fast: bool) -> None:
    body = (
        encode_batch([BatchItem(0, b"x", b"")]) if code == RequestCode.SEND_BATCH_MESSAGE else b"x"
    )

    async def test(bench: SendRig) -> None:
        refused = [topic.name for topic in bench.broker.topics if is_broker_only(topic.name)]
        assert {TIMER_TOPIC, "rmq_sys_REVIVE_LOG_DefaultCluster"} < set(refused)
        sender = bench.connect(is_fast=is_fast)
        for name in [*refused, "rmq_sys_new", "CHECKPOINT_TOPIC"]:
            sender.receive(message(body, UNIQUE, code=code, topic=name))
            await asyncio.sleep(1)
            [answer] = sender.sent()
            sender.transport.writes.clear()
            assert answer.code == ResponseCode.NO_PERMISSION, name
            assert answer.remark == f"Sending message to topic[{name}] is forbidden."
        assert bench.stored_count() == 0

    run_sends(test)


def test_topics_of_traces_and_benchmarks_accept_sends() -> None:
    async def test(bench: SendRig) -> None:
        for name in (
            "RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_region", "BenchmarkTest", "TBW102",
            "rmq_sys_own_traces", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC",
            "%RETRY%g", "%DLQ%g",
        ):  # fmt: skip
            assert (await bench.send(topic=name)).code == ResponseCode.SUCCESS, name

    run_sends(test, trace_topic_enable=True, msg_trace_topic_name="rmq_sys_own_traces")


def test_a_batch_for_a_retry_topic_is_refused_as_by_java(golden: Golden) -> None:
    request, expected = golden("320_SEND_BATCH_MESSAGE_raw-send-batch-to-retry-topic_rc13")
    assert expected is not None

    async def test(bench: SendRig) -> None:
        answer = await bench.ask(request)
        assert (answer.code, answer.remark) == (expected.code, expected.remark)

    run_sends(test)


@pytest.mark.parametrize(
    ("properties", "header", "code"),
    [
        ("", {"sys_flag": 0x4}, 13),
        ("", {"sys_flag": 0xC}, 13),
        ("TIMER_DELAY_MS\x01soon\x02", {}, 13),
        ("", {"sys_flag": 0x80}, 13),
        ("INNER_MULTI_DISPATCH\x01%LMQ%a\x02", {}, 13),
        ("__LITE_TOPIC\x01a\x02", {}, 13),
        ("DELAY\x01soon\x02", {}, 13),
        ("_SYS_MSG_PRIORITY_\x01high\x02", {}, 13),
        ("INNER_NUM\x012\x02", {}, 13),
        ("", {"topic": "Compacted"}, 13),
        ("", {"topic": "Closed", "queue_id": -1}, 29),
    ],
)
def test_unimplemented_message_kinds_are_refused_and_not_stored(
    properties: str, header: dict[str, Any], code: int
) -> None:
    async def test(bench: SendRig) -> None:
        topics = bench.broker.topics
        topics.put(TopicConfig("Compacted", attributes={"cleanup.policy": "COMPACTION"}))
        topics.put(TopicConfig("Closed", 4, 0))
        answer = await bench.send(b"x", properties, **header)
        assert answer.code == code
        assert answer.remark
        assert bench.stored_count() == 0

    run_sends(test)


def test_a_transactional_message_sent_back_by_a_consumer_is_a_normal_one() -> None:
    async def test(bench: SendRig) -> None:
        answer = await bench.send(
            properties="TRAN_MSG\x01true\x02DELAY\x013\x02", topic="%RETRY%g", reconsume_times=1
        )
        assert answer.code == 0
        assert len(bench.stored("SCHEDULE_TOPIC_XXXX", 2)) == 1

    run_sends(test)


@pytest.mark.parametrize(
    ("text", "count", "code"),
    [
        (b"\xff\x01b\x02" * 3_000, 10, 0),
        (b"\xff\x01b\x02" * 3_000, 11, 13),
        (b"a\x01b\x02" * 7_501, 4, 0),
        (b"a\x01b\x02" * 7_501, 5, 13),
        (b"a\x01b\x02" * 7_500, 11, 0),
        ("é\x01b\x02".encode() * 2_100, 13, 0),
    ],
    ids=["not UTF-8", "more not UTF-8", "long", "more long", "not long", "UTF-8"],
)
def test_decoding_of_a_batchs_properties_is_bounded(text: bytes, count: int, code: int) -> None:
    async def test(bench: SendRig) -> None:
        body = encode_batch([BatchItem(0, b"x", text)] * count)
        answer = await bench.send(body, "", code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        assert answer.code == code, answer.remark
        assert bench.stored_count() == (0 if code else count)
        assert not code or "send these messages one by one" in str(answer.remark)

    run_sends(test)


@pytest.mark.parametrize(
    ("items", "header"),
    [
        ([], {}),
        ([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"DELAY\x011\x02")], {}),
        ([BatchItem(0, b"a", b"TRAN_MSG\x01true\x02")], {}),
        ([BatchItem(0, b"a", b"TIMER_DELAY_MS\x011\x02")], {}),
        ([BatchItem(0, b"a", b"DELAY\x010\x02DELAY\x010\x02")], {}),
        ([BatchItem(0, b"a", b"__LITE_TOPIC\x01l\x02")], {}),
        ([BatchItem(0, b"a", b"")], {"sys_flag": 0x4}),
        ([BatchItem(0, b"a", b"")], {"topic": "Batched", "sys_flag": 0x1, "properties": UNIQUE}),
        (
            [BatchItem(0, b"a", b"")],
            {"topic": "Batched", "properties": UNIQUE + "DELAY\x013\x02"},
        ),
    ],
)
def test_a_batch_is_refused_as_a_whole(items: list[BatchItem], header: dict[str, Any]) -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.topics.put(TopicConfig("Batched", attributes={"queue.type": "BatchCQ"}))
        body = encode_batch(items) or b""
        answer = await bench.send(body, batch=True, **header)
        assert answer.code == (13 if body else 1)
        assert bench.stored_count() == 0

    run_sends(test)


@pytest.mark.parametrize(("count", "code"), [(32_767, 0), (32_768, 13)])
def test_an_inner_batch_is_limited_to_the_count_of_its_queue_entry(count: int, code: int) -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.topics.put(TopicConfig("Batched", attributes={"queue.type": "BatchCQ"}))
        body = encode_batch([BatchItem(0, b"a", b"")] * count)
        answer = await bench.send(body, UNIQUE, topic="Batched", batch=True)
        assert answer.code == code
        assert bench.stored_count() == (0 if code else count)
        if code:
            assert "at most 32767" in (answer.remark or "")

    run_sends(test, batch_messages_max=40_000)


def test_a_malformed_batch_body_is_answered_as_a_client_error() -> None:
    async def test(bench: SendRig) -> None:
        answer = await bench.send(b"not a batch", code=RequestCode.SEND_BATCH_MESSAGE)
        assert answer.code == 1
        assert "batch" in (answer.remark or "")

    run_sends(test)


def test_unknown_topics_are_refused_without_auto_creation() -> None:
    async def test(bench: SendRig) -> None:
        assert (await bench.send(topic="New")).code == 17

    run_sends(test, auto_create_topic_enable=False)


def test_an_unknown_group_is_refused_without_auto_creation() -> None:
    async def test(bench: SendRig) -> None:
        assert (await bench.send(topic="%RETRY%g")).code == 26

    run_sends(test, auto_create_subscription_group=False)


def test_a_shrunk_topic_accepts_messages_for_queues_that_are_still_readable() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.topics.put(TopicConfig("Shrinking", 4, 2))
        assert (await bench.send(topic="Shrinking", queue_id=3)).code == 0
        answer = await bench.send(topic="Shrinking", queue_id=4)
        assert (answer.code, answer.ext_fields) == (29, REGION)
        assert "2 queues to write and 4 to read" in (answer.remark or "")
        assert bench.stored_count() == len(bench.stored("Shrinking", 3)) == 1

    run_sends(test)


def test_a_broker_that_is_not_writable_refuses_ordered_topics() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.topics.put(TopicConfig("Ordered", order=True))
        assert (await bench.send(topic="Ordered")).code == 16
        assert (await bench.send()).code == 0

    run_sends(test, broker_permission=4)


@settings(max_examples=100, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from("abcdefghijklmn"),
        st.one_of(
            st.text(max_size=8),
            st.sampled_from(["T", "0", "1", "-1", "true", "%RETRY%g", "TAGS\x01a\x02"]),
        ),
    ),
    code=st.sampled_from([10, 310, 320]),
    body=st.binary(max_size=30),
)
def test_no_request_causes_an_internal_error(
    fields: dict[str, str], code: int, body: bytes
) -> None:
    valid = message().ext_fields

    async def test(bench: SendRig) -> None:
        command = RemotingCommand(code, {**valid, **fields}, body)
        answer = await bench.ask(command)
        assert "Error: " not in (answer.remark or ""), answer

    run_sends(test)
