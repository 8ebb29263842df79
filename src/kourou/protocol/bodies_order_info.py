"""JSON of ordered pops that are not acknowledged: the file config/consumerOrderInfo.json.

Source: ConsumerOrderInfoManager.java and its OrderInfo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kourou.protocol.fastjson import dumps
from kourou.protocol.json_records import decode_record, to_json


@dataclass(frozen=True, slots=True)
class OrderInfo:
    """The last ordered pop of a group from a queue; times are epoch milliseconds.

    Attributes:
        invisible_time: milliseconds until the messages may come again.
        offsets: the first is a queue offset, the others are differences to it.
        next_visible_times: queue offset to the time that takes the place of the pop's.
        consumed_counts: queue offset to how often the message was popped before, if it was.
        commit_bits: bit n tells that the n-th message is acknowledged; 64 bits, signed.
        attempt_id: of the pop; the same one gets the same messages again.
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
    """All of a broker: `topic@group` to queue id to the last ordered pop.

    Attributes:
        order_info_count: the queues in it; `ordered_consumption_level` is always QUEUE. Java
            derives both, and reads neither.
    """

    table: Mapping[str, Mapping[int, OrderInfo]] = field(default_factory=dict)
    order_info_count: int = 0
    ordered_consumption_level: str = "QUEUE"


def encode_order_info_table(table: OrderInfoTable, *, pretty: bool = True) -> bytes:
    """Return the text of the file, or compact."""
    return dumps(to_json(table), pretty=pretty)


def decode_order_info_table(data: bytes) -> OrderInfoTable:
    """Return the table of a file.

    Raises:
        MalformedBodyError: it is not a JSON object or a member has another type.
    """
    return decode_record(OrderInfoTable, data, bare_keys_bytes_max=len(data))
