"""Codec of the file config/consumerOrderInfo.json: the last ordered pop of each group and queue.

Source: ConsumerOrderInfoManager.java and its OrderInfo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kourou.protocol.fastjson import dumps
from kourou.protocol.json_records import decode_record, to_json


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
        order_info_count: number of queues in the table. Derived by Java, never read.
        ordered_consumption_level: always QUEUE. Derived by Java, never read.
    """

    table: Mapping[str, Mapping[int, OrderInfo]] = field(default_factory=dict)
    order_info_count: int = 0
    ordered_consumption_level: str = "QUEUE"


def encode_order_info_table(table: OrderInfoTable, *, pretty: bool = True) -> bytes:
    """Return the text of the file; compact if not `pretty`."""
    return dumps(to_json(table), pretty=pretty)


def decode_order_info_table(data: bytes) -> OrderInfoTable:
    """Return the table of a file.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    return decode_record(OrderInfoTable, data, bare_keys_bytes_max=len(data))
