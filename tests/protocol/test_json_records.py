"""Records are encoded like Java's beans, and decoded as tolerantly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.protocol.json_records import (
    decode_record,
    decode_records,
    encode_record,
    encode_records,
)

QUEUE = MessageQueue("T", "b", 1)


class Color(StrEnum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass(frozen=True, slots=True)
class Inner:
    queue_id: int = field(default=0, metadata={"wire": "q", "alias": "queueId"})


@dataclass(frozen=True, slots=True)
class Outer:
    group_name: str
    is_new: bool = False
    rate: float = 0.0
    color: Color = Color.RED
    data: bytes = b""
    queue: MessageQueue | None = None
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    by_number: Mapping[int, int] = field(default_factory=dict)
    by_queue: Mapping[MessageQueue, tuple[int, ...]] = field(default_factory=dict)


FULL = Outer(
    "g",
    True,
    1.5,
    Color.BLUE,
    b"\x00\xff",
    QUEUE,
    Inner(1),
    (Inner(2), Inner(3)),
    {"a": Inner(4)},
    {0: 5},
    {QUEUE: (6, 7)},
)
FULL_BODY = (
    b'{"byName":{"a":{"q":4}},"byNumber":{0:5},'
    b'"byQueue":{{"brokerName":"b","queueId":1,"topic":"T"}:[6,7]},'
    b'"color":"BLUE","data":"AP8=","groupName":"g","inner":{"q":1},'
    b'"inners":[{"q":2},{"q":3}],"isNew":true,'
    b'"queue":{"brokerName":"b","queueId":1,"topic":"T"},"rate":1.5}'
)


def test_record_is_encoded_with_sorted_members_and_decodes_to_the_same() -> None:
    assert encode_record(FULL) == FULL_BODY
    assert decode_record(Outer, FULL_BODY) == FULL


def test_missing_and_null_members_get_defaults_and_unknown_ones_are_ignored() -> None:
    body = b'{"groupName":"g","color":null,"unknown":[1],"inners":null}'

    assert decode_record(Outer, body) == Outer("g")


def test_a_member_without_a_default_is_required() -> None:
    with pytest.raises(MalformedBodyError, match="groupName is missing"):
        decode_record(Outer, b"{}")


def test_member_is_decoded_from_its_other_name_a_text_or_an_ordinal() -> None:
    body = b'{"groupName":"g","inner":{"queueId":"3"},"color":1,"isNew":"true"}'

    record = decode_record(Outer, body)

    assert record == Outer("g", True, color=Color.BLUE, inner=Inner(3))


def test_body_may_be_an_array_of_records() -> None:
    body = encode_records([Inner(1), Inner(2)])

    assert body == b'[{"q":1},{"q":2}]'
    assert decode_records(Inner, body) == [Inner(1), Inner(2)]


@pytest.mark.parametrize(
    "member",
    [
        '"isNew":7',
        '"rate":"x"',
        '"color":"GREEN"',
        '"color":9',
        '"data":"?"',
        '"data":"\u00e9"',
        '"queue":7',
        '"inner":[]',
        '"inners":{}',
        '"inners":[7]',
        '"byName":{"a":7}',
        '"byNumber":{"x":7}',
        '"byQueue":{"x":[]}',
    ],
)
def test_member_of_the_wrong_type_is_refused(member: str) -> None:
    with pytest.raises(MalformedBodyError):
        decode_record(Outer, f'{{"groupName":"g",{member}}}'.encode())
