"""Messages refuse values that could not be stored or delivered unchanged."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kourou.errors import InvalidMessageError
from kourou.model import properties as names
from kourou.model.message import Message, MessageExt
from kourou.model.properties import RESERVED, encode_properties


def stored(**properties: str) -> MessageExt:
    return MessageExt(
        topic="T",
        body=b"hi",
        properties=properties,
        flag=0,
        queue_id=1,
        queue_offset=2,
        physical_offset=3,
        sys_flag=0,
        born_at_ms=4,
        born_host=("127.0.0.1", 5),
        store_at_ms=6,
        store_host=("10.0.0.1", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        store_size=98,
        body_crc=1486039724,
    )


def test_simple_message_has_only_the_wait_property() -> None:
    assert Message("T", b"x").to_properties() == {"WAIT": "true"}


def test_messages_share_no_mutable_values() -> None:
    given = {"a": "b"}
    first, second, third = (
        Message("T", b"x"),
        Message("T", b"x"),
        Message("T", b"x", properties=given),
    )
    given["a"] = "c"

    assert first == second == replace(third, properties={})
    assert first.properties is not second.properties
    assert third.properties == {"a": "b"}
    assert replace(third, flag=5).properties is not third.properties


def test_subclass_of_message_is_checked() -> None:
    @dataclass(frozen=True, slots=True)
    class Order(Message):
        number: int = 0

    assert Order("T", b"x", keys=["k"], number=3).keys == ("k",)
    with pytest.raises(InvalidMessageError, match="blank"):
        Order("T", b"x", keys=["a b"])


def test_tags_keys_delay_and_wait_are_sent_as_properties() -> None:
    message = Message(
        "T",
        b"x",
        tags="eu",
        keys=["o-1", "o-2"],
        properties={"region": "north"},
        delay_level=3,
        wait_store_ok=False,
    )

    assert message.to_properties() == {
        "region": "north",
        "KEYS": "o-1 o-2",
        "WAIT": "false",
        "TAGS": "eu",
        "DELAY": "3",
    }


def test_later_changes_of_arguments_do_not_affect_the_message() -> None:
    properties, keys = {"a": "1"}, ["k"]
    message = Message("T", b"x", properties=properties, keys=keys)
    properties["b"] = "2"
    keys.append("l")

    assert message.properties == {"a": "1"}
    assert message.keys == ("k",)


def test_message_can_be_pickled() -> None:
    message = Message("T", b"x", keys=["k"], properties={"a": "1"})

    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - our own bytes


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_property_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidMessageError, match="set by the system"):
        Message("T", b"x", properties={name: "1"})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"topic": 1}, "topic must be a str"),
        ({"body": "text"}, "body must be bytes"),
        ({"body": bytearray(b"x")}, "body must be bytes"),
        ({"flag": 1 << 31}, "flag 2147483648"),
        ({"flag": -(1 << 31) - 1}, "32-bit"),
        ({"flag": "1"}, "32-bit"),
        ({"delay_level": 1.5}, "delay_level 1.5"),
        ({"delay_level": -1}, "negative"),
        ({"priority": -1}, "0 is the lowest"),
        ({"priority": 1 << 31}, "priority 2147483648"),
        ({"priority": True}, "priority True"),
        ({"priority": "1"}, "priority '1'"),
        ({"tags": ""}, "tags is empty"),
        ({"tags": 1}, "tags must be a str"),
        ({"tags": "a\x02b"}, "ends a property"),
        ({"keys": "o-17"}, "not one str"),
        ({"keys": ["a b"]}, "blank"),
        ({"keys": [""]}, "a key is empty"),
        ({"properties": {"": "v"}}, "name is empty"),
        ({"properties": {"a": ""}}, "value of property a is empty"),
        ({"properties": {"a": "v\x02"}}, "ends a property"),
        ({"properties": {"a\x01": "v"}}, "ends a name"),
        ({"properties": {"a": 1}}, "value of property a must be a str"),
    ],
)
def test_value_that_cannot_be_stored_is_refused_with_a_reason(
    arguments: dict[str, Any], reason: str
) -> None:
    given: dict[str, Any] = {"topic": "T", "body": b"x"} | arguments
    with pytest.raises(InvalidMessageError, match=reason):
        Message(given.pop("topic"), given.pop("body"), **given)


def test_value_may_contain_the_name_separator() -> None:
    assert Message("T", b"x", properties={"a": "v\x01w"}).to_properties()["a"] == "v\x01w"


def test_stored_message_exposes_its_system_properties() -> None:
    message = stored(TAGS="eu", KEYS="o-1 o-2", DELAY="3", UNIQ_KEY="7F00")

    assert message.tags == "eu"
    assert message.keys == ["o-1", "o-2"]
    assert message.delay_level == 3
    assert message.msg_id == "7F00"
    assert message.offset_msg_id == "0A00000100002A9F0000000000000003"


def test_stored_message_without_system_properties_has_defaults() -> None:
    message = stored()

    assert message.tags is None
    assert message.keys == []
    assert message.delay_level == 0
    assert message.msg_id == message.offset_msg_id


def test_priority_is_decoded() -> None:
    assert Message("T", b"x", priority=7).to_properties()["_SYS_MSG_PRIORITY_"] == "7"
    assert stored(_SYS_MSG_PRIORITY_="7").priority == 7
    assert stored(_SYS_MSG_PRIORITY_="high").priority is None
    assert stored(_SYS_MSG_PRIORITY_="1" * 5_000).priority is None
    assert stored().priority is None


@pytest.mark.parametrize("text", ["x", "-1", "3.5", "\u0663", "1" * 5_000])
def test_invalid_delays_count_as_zero(text: str) -> None:
    assert stored(DELAY=text).delay_level == 0
    assert stored(TIMER_DELIVER_MS=text).deliver_at_ms == 0


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x"),
        Message("T", b"x", tags="eu", keys=["a", "b"], wait_store_ok=False, delay_level=3),
        Message("T", b"x", properties={"b": "1", "a": "ä"}, keys=["k"]),
        Message("T", b"x", tags=None, properties={"z": " "}, delay_level=18),
        Message("T", b"x", priority=0, keys=["a"]),
    ],
)
def test_property_text_equals_the_encoded_properties(message: Message) -> None:
    properties = message.to_properties() | {names.UNIQ_KEY: "ID"}
    assert message.property_text("ID").encode() == encode_properties(properties)
