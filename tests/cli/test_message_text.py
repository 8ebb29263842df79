"""Tests that any message is printed as one line of JSON or text."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from kourou.cli.message_text import BODY_SHOWN_MAX, human_text, json_text
from kourou.model.message import MessageExt


def message(body: bytes = b"hello", **properties: str) -> MessageExt:
    return MessageExt(
        topic="orders",
        body=body,
        properties={"UNIQ_KEY": "0A", "WAIT": "true", **properties},
        flag=0,
        queue_id=3,
        queue_offset=17,
        physical_offset=4096,
        sys_flag=0,
        born_at_ms=1_735_819_384_100,
        born_host=("127.0.0.1", 5),
        store_at_ms=1_735_819_384_125,
        store_host=("127.0.0.1", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        store_size=200,
        body_crc=0,
        broker_name="broker-a",
    )


def test_json_line_has_all_members() -> None:
    assert json.loads(json_text(message(TAGS="eu", KEYS="o-17 o-18", shop="Köln"))) == {
        "topic": "orders",
        "broker": "broker-a",
        "queue_id": 3,
        "queue_offset": 17,
        "msg_id": "0A",
        "tags": "eu",
        "keys": ["o-17", "o-18"],
        "properties": {"shop": "Köln"},
        "born_at_ms": 1_735_819_384_100,
        "store_at_ms": 1_735_819_384_125,
        "reconsume_times": 0,
        "body": "hello",
    }


def test_a_body_that_is_not_text_is_base64() -> None:
    members = json.loads(json_text(message(b"\xff\x00")))

    assert base64.b64decode(members["body_base64"]) == b"\xff\x00"
    assert "body" not in members


def test_text_line_has_position_labels_and_body() -> None:
    where, what = human_text(message(TAGS="eu", KEYS="o-17", shop="Köln"))

    assert where.endswith(".125  broker-a/3@17")
    assert what == "[eu]  key=o-17  shop=Köln  hello"
    assert human_text(message(__SHARDINGKEY="c-1"))[1] == "sharding-key=c-1  hello"


def test_a_redelivery_is_shown() -> None:
    again = message()
    again.reconsume_times = 2

    assert human_text(again)[1] == "redelivered=2  hello"


def test_control_characters_of_a_body_are_escaped() -> None:
    _, what = human_text(message(b"one\ntwo \x1b[2J \xe2\x80\xae", TAGS="a\nb"))

    assert what == "[a\\nb]  one\\ntwo \\x1b[2J \\u202e"


def test_long_body_is_shortened_in_text_and_complete_in_json() -> None:
    long = message(b"x" * (BODY_SHOWN_MAX + 1))

    assert human_text(long)[1].endswith("x... (2,001 bytes: --json prints all of them)")
    assert json.loads(json_text(long))["body"] == "x" * (BODY_SHOWN_MAX + 1)


def test_binary_body_is_described_in_text() -> None:
    assert human_text(message(b"\xff" * 1024))[1] == (
        "(1,024 bytes, not text: --json prints them as base64)"
    )


@given(body=st.binary(max_size=60), tag=st.text(max_size=10))
def test_any_message_is_one_line(body: bytes, tag: str) -> None:
    odd = message(body, TAGS=tag)
    text = json_text(odd)
    where, what = human_text(odd)

    assert len(text.splitlines()) == 1 or "\n" not in text
    assert "\n" not in text
    assert (where + what).isprintable()
