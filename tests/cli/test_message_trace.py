"""Tests of `kourou message trace`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kourou import ConsumeFromWhere, Message, ProducerConfig, PullConsumerConfig
from kourou.blocking import Producer, PullConsumer
from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]
TOPIC = "f-traces"


def test_trace_of_a_message_is_shown(kourou: Kourou, serving: Serving) -> None:
    kourou("topic", "create", TOPIC, "--queues", "1")
    with Producer("tracers", serving.namesrv, config=ProducerConfig(enable_trace=True)) as producer:
        receipt = producer.send(Message(TOPIC, b"x", keys=["o-17"]), timeout_ms=60_000)
    config = PullConsumerConfig(enable_trace=True, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with PullConsumer("trace-readers", serving.namesrv, config=config) as consumer:
        consumer.subscribe(TOPIC)
        while not consumer.poll(timeout_ms=1_000):
            pass

    shown = kourou("message", "trace", receipt.msg_id, "--json")
    table = kourou("message", "trace", receipt.msg_id).out

    assert (shown.code, shown.err) == (0, "")
    sent, consumed = json.loads(shown.out)
    assert (sent["step"], sent["group"], sent["status"]) == ("sent", "tracers", "success")
    assert (consumed["step"], consumed["group"]) == ("consumed", "trace-readers")
    assert consumed["status"] == "success"
    assert sent["at_ms"] <= consumed["at_ms"]
    assert {sent["client"], consumed["client"]} == {"127.0.0.1"}
    header, first, second = table.splitlines()
    assert header.split() == ["STEP", "GROUP", "CLIENT", "AT", "MS", "STATUS"]
    assert first.split()[:2] == ["sent", "tracers"]
    assert second.split()[:2] == ["consumed", "trace-readers"]


def test_message_without_a_trace_is_an_error(kourou: Kourou) -> None:
    kourou("topic", "create", "f-no-traces", "--queues", "1")
    missing = kourou("message", "trace", "7F00", "--topic", "f-no-traces")
    assert missing.code != 0
    nowhere = kourou("message", "trace", "7F00", "--topic", "f-nowhere")
    assert "there is no trace topic f-nowhere" in nowhere.err
    assert "f-no-traces has no trace of 7F00: clients write traces if " in missing.err
