"""Codec of the file config/consumerOrderInfo.json: the last ordered pop of each group and queue.

Keys are sorted; Java writes them in the order of its hash tables, and reads any order.

The file has bare keys, which no JSON library reads. Each is at the start of a line, and is quoted
by a regular expression, so that the text is decoded as strict JSON: a start with 10,000 infos would
spend seconds in the parser of `fastjson`. That parser reads what is not in the usual form.

Source: QueueLevelConsumerManager.java and its OrderInfo, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Final

import msgspec

from kourou.protocol.fastjson import dumps
from kourou.protocol.json_records import decode_record, to_json

_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_BARE_KEY: Final = re.compile(rb"^(\t*)(-?[0-9]+):", re.MULTILINE)  # texts have no line ends
_PART_ENTRIES: Final = 20
_encode_text: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class OrderInfo:
    """The last ordered pop of a group from a queue; times are in epoch milliseconds.

    Attributes:
        invisible_time: milliseconds until the messages may be redelivered.
        offsets: the first is a queue offset, the others are differences from it.
        next_visible_times: queue offset to a redelivery time that replaces the pop's.
        consumed_counts: queue offset to the number of earlier pops of the message, if any.
        commit_bits: bit n is set if the n-th message is acknowledged; signed 64 bits.
        attempt_id: id of the pop; a repeated pop with the same id gets the same messages.
    """

    pop_time: int = 0
    invisible_time: int | None = field(default=None, metadata={"wire": "i"})
    offsets: tuple[int, ...] = field(default=(), metadata={"wire": "o"})
    next_visible_times: Mapping[int, int] | None = field(default=None, metadata={"wire": "ot"})
    consumed_counts: Mapping[int, int] | None = field(default=None, metadata={"wire": "oc"})
    last_consume_timestamp: int = field(default=0, metadata={"wire": "l"})
    commit_bits: int = field(default=0, metadata={"wire": "cm"})
    attempt_id: str | None = field(default=None, metadata={"wire": "a"})


@dataclass(frozen=True, slots=True)
class OrderInfoTable:
    """The ordered pops of a broker: `topic@group` to queue id to the last ordered pop.

    Attributes:
        order_info_count: number of keys of the table. Derived by Java, never read.
        ordered_consumption_level: always QUEUE. Derived by Java, never read.
    """

    table: Mapping[str, Mapping[int, OrderInfo]] = field(default_factory=dict)
    order_info_count: int = 0
    ordered_consumption_level: str = "QUEUE"


def encode_order_info_table(table: OrderInfoTable, *, pretty: bool = True) -> bytes:
    """Return the text of the file; compact if not `pretty`."""
    return dumps(to_json(table), pretty=pretty)


def encode_order_info_parts(
    count: int, entries: Iterable[tuple[str, Mapping[int, OrderInfo]]]
) -> Iterator[bytes]:
    """Yield the parts of the text that `encode_order_info_table` returns; each takes about 1 ms.

    Args:
        count: number of the entries.
        entries: `topic@group`, ascending, each with its infos by queue id.
    """
    yield dumps({"orderInfoCount": count, "orderedConsumptionLevel": "QUEUE"}, pretty=True)[:-2]
    remaining = iter(entries)
    before = b',\n\t"table":{\n\t\t'
    while part := list(islice(remaining, _PART_ENTRIES)):
        yield before + b",\n\t\t".join(_entry(key, infos) for key, infos in part)
        before = b",\n\t\t"
    yield b"\n\t}\n}" if len(before) == len(b",\n\t\t") else b',\n\t"table":{}\n}'


def _entry(key: str, infos: Mapping[int, OrderInfo]) -> bytes:
    if not infos:
        return _encode_text(key) + b":{}"
    members = (b"%d:%b" % (queue_id, _info(infos[queue_id])) for queue_id in sorted(infos))
    return b"%b:{\n\t\t\t%b\n\t\t}" % (_encode_text(key), b",\n\t\t\t".join(members))


def _info(info: OrderInfo) -> bytes:
    """Return the text of one info, at its level in the file."""
    members = [
        b'"cm":%d' % info.commit_bits,
        b'"l":%d' % info.last_consume_timestamp,
        b'"o":' + _encode_text(info.offsets),
        b'"popTime":%d' % info.pop_time,
    ]
    if info.next_visible_times is not None:
        members.insert(3, b'"ot":' + _numbers(info.next_visible_times))
    if info.consumed_counts is not None:
        members.insert(3, b'"oc":' + _numbers(info.consumed_counts))
    if info.invisible_time is not None:
        members.insert(1, b'"i":%d' % info.invisible_time)
    if info.attempt_id is not None:
        members.insert(0, b'"a":' + _encode_text(info.attempt_id))
    return b"{\n\t\t\t\t%b\n\t\t\t}" % b",\n\t\t\t\t".join(members)


def _numbers(values: Mapping[int, int]) -> bytes:
    if not values:
        return b"{}"
    members = b",\n\t\t\t\t\t".join(b"%d:%d" % (key, values[key]) for key in sorted(values))
    return b"{\n\t\t\t\t\t%b\n\t\t\t\t}" % members


def decode_order_info_table(data: bytes) -> OrderInfoTable:
    """Return the table of a file.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    usual = _try_decode(data)
    if usual is not None:
        return usual
    return decode_record(OrderInfoTable, data, bare_keys_bytes_max=len(data))


class _DecodedInfo(msgspec.Struct):
    pop_time: _Long = msgspec.field(default=0, name="popTime")
    i: _Long | None = None
    o: tuple[_Long, ...] = ()
    ot: dict[_Long, _Long] | None = None
    oc: dict[_Long, _Long] | None = None
    l: _Long = 0  # noqa: E741 - Java's name
    cm: _Long = 0
    a: str | None = None


class _DecodedTable(msgspec.Struct):
    table: dict[str, dict[_Long, _DecodedInfo]]


_decode_table: Final = msgspec.json.Decoder(_DecodedTable).decode


def _try_decode(data: bytes) -> OrderInfoTable | None:
    """Return the table; None if the text is not in the form that brokers write."""
    try:
        decoded = _decode_table(_BARE_KEY.sub(rb'\1"\2":', data))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    table = {
        key: {
            queue_id: OrderInfo(one.pop_time, one.i, one.o, one.ot, one.oc, one.l, one.cm, one.a)
            for queue_id, one in infos.items()
        }
        for key, infos in decoded.table.items()
    }
    return OrderInfoTable(table, len(table))
