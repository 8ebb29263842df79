"""Explanations of deliveries, from the facts that brokers report."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kourou.client.administration.explanations import (
    JAVA_HIDES_POPS,
    NO_COPIES,
    NO_FILTER,
    AbsentMessage,
    DeliveryFacts,
    DeliveryState,
    Explanation,
    MessageCopy,
    created_ms,
    explain_absence,
    explain_delivery,
)
from kourou.filter.tags import parse_tags
from kourou.model import properties as names
from kourou.model.group import ConsumeType, MessageModel, SubscriptionGroup
from kourou.model.message import MessageExt
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.subscription import SubscriptionData
from kourou.protocol.stats import ConsumeOffset
from tests.client.consuming.messages import message_at

GROUP = SubscriptionGroup("g", retry_max_times=5)
ALIVE: dict[str, Any] = {
    "members": ("c1",),
    "consume_type": ConsumeType.PASSIVELY,
    "message_model": MessageModel.CLUSTERING,
    "subscription": parse_tags("T", "*"),
    "offset": ConsumeOffset(20, 10, 10),
}


def at(offset: int, tag: str | None = None, **properties: str) -> MessageExt:
    message = message_at(offset)
    message.broker_name = "b0"
    message.properties = {names.UNIQ_KEY: "id", **properties}
    if tag is not None:
        message.properties[names.TAGS] = tag
    return message


def explained(message: MessageExt, **facts: Any) -> Explanation:
    return explain_delivery(
        message, DeliveryFacts(**{"group": "g", "settings": GROUP, **facts}), str
    )


def copy(retries: int, topic: str = "%RETRY%g", **fields: Any) -> MessageCopy:
    message = at(3)
    message.reconsume_times = retries
    message.store_at_ms = retries
    return MessageCopy(message, topic, **fields)


def test_message_before_the_offset_of_its_group_is_consumed() -> None:
    found = explained(at(9), **ALIVE)
    assert (found.state, found.unknown) == (DeliveryState.CONSUMED, ())
    assert explained(at(10), **ALIVE).state is DeliveryState.WAITING


def test_message_in_flight_is_invisible_until_a_time() -> None:
    found = explained(at(9), **ALIVE, visible_at_ms=4711)
    assert found.state is DeliveryState.IN_FLIGHT
    assert "invisible until 4711" in found.text


@pytest.mark.parametrize(
    ("subscription", "text"),
    [
        (parse_tags("T", "a || b"), "the tags 'a || b' do not accept a message with tag 'c'"),
        (
            SubscriptionData("T", "n > 5", expression_type="SQL92"),
            "the expression 'n > 5' is not true for its properties",
        ),
    ],
)
def test_filter_that_excludes_a_message_is_named(subscription: SubscriptionData, text: str) -> None:
    facts = {**ALIVE, "subscription": subscription}
    passed = explained(at(9, "c", n="5"), **facts)
    ahead = explained(at(15, "c", n="5"), **facts)
    assert passed.state is ahead.state is DeliveryState.FILTERED
    assert passed.text == f"{text}; it was passed over"
    assert ahead.text == f"{text}; it will be passed over"
    accepted = explained(at(9, "a", n="6"), **facts)
    assert accepted.state is DeliveryState.CONSUMED


def test_message_without_a_tag_is_not_accepted_by_tags() -> None:
    found = explained(at(9), **{**ALIVE, "subscription": parse_tags("T", "a")})
    assert "do not accept a message without a tag" in found.text


def test_all_reasons_of_a_message_that_waits_are_listed() -> None:
    offset = ConsumeOffset(
        20, 10, 16, lock_holder="c1", block_reason="offset 10 is not acknowledged"
    )
    facts = DeliveryFacts(
        "g",
        replace(GROUP, consume_enable=False),
        is_read_forbidden=True,
        is_topic_readable=False,
        members=("c1",),
        consume_type=ConsumeType.PASSIVELY,
        offset=offset,
        holders=(),
    )
    found = explain_delivery(at(15), facts, str)
    assert found.state is DeliveryState.WAITING
    assert found.text == found.reasons[0]
    assert found.reasons == (
        "the group may not consume (consume_enable=false)",
        "the group is forbidden to read the topic",
        "the topic is not readable",
        "the live members do not subscribe to the topic",
        "the queue is blocked: offset 10 is not acknowledged",
        "the queue is locked by c1, which consumes it in order",
        "the queue is assigned to no live member",
        "a member has pulled it and not acknowledged it",
        "5 messages are before it: the group's offset is 10",
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"members": (), "subscription": None}, "the group has no live member"),
        ({"holders": ("c1", "c2")}, "the queue is assigned to c1, c2"),
        ({"offset": ConsumeOffset(20, 9, 9)}, "1 message is before it: the group's offset is 9"),
        ({}, "it is the next message of its queue"),
    ],
)
def test_reason_of_a_message_that_waits_is_its_text(facts: dict[str, Any], reason: str) -> None:
    assert explained(at(10), **{**ALIVE, **facts}).text == reason


def test_latest_retry_decides() -> None:
    early = copy(1, is_consumed=True)
    for later, state, text in (
        (copy(2, due_at_ms=99), DeliveryState.RETRY, "retry 2 of 5 is due at 99"),
        (copy(2, is_consumed=True), DeliveryState.CONSUMED, "retry 2 of 5 was consumed"),
        (copy(2, is_consumed=False), DeliveryState.RETRY, "retry 2 of 5 waits in %RETRY%g"),
        (
            copy(2, is_consumed=True, visible_at_ms=77),
            DeliveryState.RETRY,
            "retry 2 of 5 is in flight, and invisible until 77",
        ),
    ):
        found = explained(at(9), **ALIVE, copies=(later, early))
        assert (found.state, found.text) == (state, text)


def test_dead_letter_has_its_reason() -> None:
    dead = copy(5, "%DLQ%g")
    dead.message.properties[names.DLQ_REASON] = "no such\naccount"
    found = explained(at(9), **ALIVE, copies=(copy(5, is_consumed=True),), dead_letter=dead)
    assert (found.state, found.text) == (DeliveryState.DEAD_LETTER, "since 5: no such account")
    del dead.message.properties[names.DLQ_REASON]
    assert explained(at(9), dead_letter=dead).text == "since 5: no reason was stored"


def test_removed_message_and_missing_and_broadcasting_groups_are_told_apart() -> None:
    assert explained(at(3), **ALIVE, first_offset=4).state is DeliveryState.EXPIRED
    missing = explain_delivery(at(3), DeliveryFacts("g", None), str)
    assert (missing.state, missing.text) == (
        DeliveryState.NO_GROUP,
        "broker b0 does not have the group",
    )
    broadcast = explained(at(3), **{**ALIVE, "message_model": MessageModel.BROADCASTING})
    assert broadcast.state is DeliveryState.BROADCAST


def test_what_is_not_known_is_stated() -> None:
    message = at(9)
    del message.properties[names.UNIQ_KEY]
    found = explained(message, offset=ConsumeOffset(20, 10, 10), reports_pops=False)
    assert found.unknown == (JAVA_HIDES_POPS, NO_FILTER, NO_COPIES)
    pulled = explained(at(9), **ALIVE, reports_pops=False)
    assert pulled.unknown == (), "its members pull"
    filtered = {**ALIVE, "subscription": parse_tags("T", "a")}
    assert explained(at(9), **filtered, reports_pops=False).unknown == ()


NOW_MS = int(datetime(2026, 3, 10, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000


def unique_id(at_ms: int) -> str:
    return UniqueIdGenerator("10.0.0.1", 7, lambda: 5).next(at_ms)


def test_creation_time_of_an_id_is_in_the_latest_possible_month() -> None:
    for back_ms in (0, 9 * DAY_MS, 12 * DAY_MS):
        assert created_ms(unique_id(NOW_MS - back_ms), NOW_MS) == NOW_MS - back_ms
    assert created_ms("o-17", NOW_MS) is None


def test_missing_message_is_scheduled_half_or_expired() -> None:
    absent = AbsentMessage("T", unique_id(NOW_MS - 2 * DAY_MS), NOW_MS - DAY_MS)
    scheduled = copy(1, "T", due_at_ms=NOW_MS + 1)
    for copies, state, text in (
        ((scheduled,), DeliveryState.NOT_DUE, f"it is delivered to T at {NOW_MS + 1}"),
        ((copy(1, "T", due_at_ms=NOW_MS),), DeliveryState.NOT_DUE, f"it was due at {NOW_MS}"),
        ((copy(1, "T"),), DeliveryState.HALF, "its transaction is open, or was rolled back"),
        ((), DeliveryState.EXPIRED, "it has expired: by its id it was created"),
    ):
        found = explain_absence(copies, absent, str, NOW_MS)
        assert found is not None
        assert (found.group, found.state) == (None, state)
        assert found.text.startswith(text)
    recent = absent._replace(unique_id=unique_id(NOW_MS))
    assert explain_absence((), recent, str, NOW_MS) is None
