"""Tests of `kourou message explain`: why a message was not delivered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kourou import blocking
from kourou.client.consuming.consumer_config import SimpleConsumerConfig
from kourou.model.group import ConsumeFromWhere
from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def send(kourou: Kourou, topic: str, *options: str) -> dict[str, Any]:
    receipt: dict[str, Any] = kourou("send", topic, "x", *options, "--json").rows[0]
    return receipt


def test_states_of_popped_filtered_and_waiting_messages_are_shown(
    kourou: Kourou, serving: Serving
) -> None:
    topic = "x-states"
    kourou("topic", "create", topic, "--queues", "1")
    kourou("group", "create", "x-other")
    eu, us = (send(kourou, topic, "--tag", tag) for tag in ("eu", "us"))
    config = SimpleConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = blocking.SimpleConsumer("x-popping", serving.namesrv, config=config)
    consumer.subscribe(topic, "eu")
    with consumer:
        (message,) = consumer.receive(invisible_ms=60_000)
        popped = kourou("message", "explain", topic, eu["msg_id"]).out
        filtered = document(kourou("message", "explain", topic, us["msg_id"], "--json"))
        consumer.ack(message)
        done = document(kourou("message", "explain", topic, "broker-a/0@0", "--json"))
    waiting = kourou("message", "explain", topic, "broker-a/0@0", "--group", "x-other").out

    assert f"{eu['msg_id']}  {topic} broker-a/0@0  stored 20" in popped
    assert "x-popping  in flight  popped; invisible until 20" in popped
    (one,) = filtered
    assert one["message"]["msg_id"] == us["msg_id"]
    (explanation,) = one["explanations"]
    assert (explanation["group"], explanation["state"]) == ("x-popping", "filtered")
    assert "the tags 'eu' do not accept a message with tag 'us'" in explanation["text"]
    assert done[0]["explanations"][0]["state"] == "consumed"
    assert "x-other  waiting  the group has no live member" in waiting


def test_message_that_is_not_due_is_explained_by_its_id(kourou: Kourou) -> None:
    topic = "x-later"
    kourou("topic", "create", topic, "--queues", "1")
    for options in (("--delay", "1h"), ("--delay-level", "9")):
        receipt = send(kourou, topic, *options)
        text = kourou("message", "explain", topic, receipt["msg_id"]).out
        assert f"{receipt['msg_id']} is not in {topic}: not due" in text
        assert f"it is delivered to {topic} at 20" in text
        (found,) = document(kourou("message", "explain", topic, receipt["msg_id"], "--json"))
        assert (found["message"], found["asked"]) == (None, receipt["msg_id"])
        assert found["explanations"][0]["state"] == "not due"


def test_topic_without_groups_and_wrong_arguments_are_named(kourou: Kourou) -> None:
    topic = "x-alone"
    kourou("topic", "create", topic, "--queues", "1")
    receipt = send(kourou, topic)
    alone = kourou("message", "explain", topic, receipt["msg_id"])
    assert (alone.code, "no group has consumed" in alone.out) == (0, True)
    for args, code, text in (
        (("x-nothing", receipt["msg_id"]), 1, "x-nothing"),
        ((topic, "no-such-id"), 1, "no-such-id"),
        ((topic, "broker-a/0@7"), 1, "has no offset 7"),
        ((topic, receipt["msg_id"], "--group", "no group"), 2, "no group"),
    ):
        refused = kourou("message", "explain", *args)
        assert (refused.code, refused.out) == (code, ""), refused
        assert text in refused.err
