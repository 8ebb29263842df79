"""Tests of `kourou group`: consume mode, and members with different subscriptions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kourou import blocking
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def test_members_with_different_subscriptions_are_listed(serving: Serving, kourou: Kourou) -> None:
    kourou("topic", "create", "Different")
    consumers = []
    for name, tags in (("one", "a"), ("two", "b")):
        consumer = blocking.PushConsumer(
            "g-differ", serving.namesrv, config=PushConsumerConfig(instance_name=name)
        )
        consumer.subscribe("Different", tags=tags)
        consumer.listen(lambda _: None)
        consumers.append(consumer)
    with consumers[0]:
        assert "DIFFER" not in kourou("group", "describe", "g-differ").out
        with consumers[1]:
            text = kourou("group", "describe", "g-differ").out
            reported = json.loads(kourou("group", "describe", "g-differ", "--json").out)
            connected = kourou("group", "connections", "g-differ").out
    assert "SUBSCRIPTIONS DIFFER" in text
    assert "SUBSCRIPTIONS DIFFER" in connected
    (line,) = reported["subscriptions_differ"]
    assert line.startswith("Different: 'a' by ")
    assert consumers[1].client_id in line.partition("'b' by ")[2]
    assert line in text


def test_set_mode_sets_pop_and_pull(kourou: Kourou) -> None:
    kourou("topic", "create", "Popped")
    popped = kourou("group", "set-mode", "g-mode", "Popped", "pop", "--share", "2")
    assert (popped.code, popped.out) == (0, "g-mode pops Popped on broker-a\n")
    pulled = kourou("group", "set-mode", "g-mode", "Popped", "pull")
    assert (pulled.code, pulled.out) == (0, "g-mode pulls Popped on broker-a\n")
    pulled = kourou("group", "set-mode", "g-mode", "Popped", "pull", "--json")
    assert json.loads(pulled.out) == {
        "group": "g-mode",
        "topic": "Popped",
        "mode": "pull",
        "share": 0,
        "brokers": ["broker-a"],
    }


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("g-mode", "NoSuchTopic", "pop"), "NoSuchTopic"),
        (("g-mode", "Popped", "push"), "pull"),
        (("g-mode", "Popped", "pop", "--share", "-1"), "share_queues is -1"),
        (("g-mode", "Popped", "pop", "--broker", "broker-x"), "is not on broker-x, but on"),
    ],
)
def test_invalid_set_mode_arguments_are_refused(
    kourou: Kourou, args: tuple[str, ...], text: str
) -> None:
    kourou("topic", "create", "Popped")
    outcome = kourou("group", "set-mode", *args)
    assert outcome.code != 0
    assert text in outcome.err
