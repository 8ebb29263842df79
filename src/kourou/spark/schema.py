"""Columns of the data source, their types, and Arrow batches of decoded messages. Pure.

    column           Spark type           content
    topic            string
    brokerName       string               the broker that the queue is on
    queueId          int
    queueOffset      bigint               offset in the queue; unique with the three above
    msgId            string               the producer's unique id, else the offset message id
    tags             string               the tag, or null
    keys             array<string>        index keys, perhaps none
    properties       map<string,string>   all properties, including RocketMQ's own
    flag             int                  a number set by the producer
    sysFlag          int                  without COMPRESSED, because the body is decompressed
    reconsumeTimes   int                  number of failed deliveries
    body             binary
    bornHost         string               ip:port of the producer
    bornTimestamp    timestamp            by the producer's clock
    storeTimestamp   timestamp            by the broker's

The option includeOffsetMsgId adds one more column, which few reads need:

    offsetMsgId      string               address of the broker and position in its log

A read of a store directory has three more columns:

    commitLogOffset  bigint               position of the record, or of a corrupt range, in the log
    storeSize        bigint               size of the record or of the range, in bytes
    corrupt          string               what is wrong; null for a sound message

All columns are nullable; a time that Spark cannot represent, more than 290,000 years from 1970, is
null. Spark accepts Arrow batches without conversion if their schema is identical to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from kourou.errors import ConfigError
from kourou.model.message import MessageExt
from kourou.remoting.network import format_address

INSTANT: Final = pa.timestamp("us", tz="UTC")
"""The Arrow type that Spark expects for a timestamp."""
INSTANT_MAX_MS: Final = ((1 << 63) - 1) // 1000
"""Largest distance from the epoch, in milliseconds, that a column can hold in microseconds."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the source.

    Attributes:
        spark_type: the type in Spark's DDL.
        arrow_type: the Arrow type that Spark expects for it.
        value: returns the value of a message; None for null, and for columns that are not made of
            messages.
        ddl_type: the type in Spark's DDL if it differs from `spark_type`, with names quoted.
    """

    name: str
    spark_type: str
    arrow_type: pa.DataType
    value: Callable[[MessageExt], Any] = lambda _message: None
    ddl_type: str = ""


def ddl(columns: Mapping[str, Column] | None = None) -> str:
    """Return the schema of the columns, by default of all, as Spark's DDL."""
    chosen = COLUMNS if columns is None else columns
    return ", ".join(f"`{one.name}` {one.ddl_type or one.spark_type}" for one in chosen.values())


def choose_columns(
    fields: Iterable[tuple[str, str, bool]], columns: Mapping[str, Column] | None = None
) -> tuple[str, ...]:
    """Return the names of the columns of a schema, in its order.

    Args:
        fields: (name, type in Spark's DDL, nullable) of each column.
        columns: the columns of the read; by default all.

    Raises:
        ConfigError: there is no column, or one is unknown, of another type or not nullable.
    """
    chosen, known = list(fields), COLUMNS if columns is None else columns
    if not chosen:
        raise ConfigError("the schema has no columns: omit it to read all columns")
    for name, spark_type, is_nullable in chosen:
        if name not in known:
            raise ConfigError(f"unknown column {name!r}; columns are {', '.join(known)}")
        if spark_type != known[name].spark_type:
            raise ConfigError(
                f"column {name} has the type {known[name].spark_type}, but the schema asks for "
                f"{spark_type}: cast it after the read"
            )
        if not is_nullable:
            raise ConfigError(f"column {name} is declared NOT NULL, but all columns are nullable")
    return tuple(name for name, _, _ in chosen)


def arrow_schema(names: Sequence[str], columns: Mapping[str, Column] | None = None) -> pa.Schema:
    """Return the Arrow schema that Spark expects for these columns."""
    known = ALL_COLUMNS if columns is None else columns
    return pa.schema([(name, known[name].arrow_type) for name in names])


def build_batch(messages: Sequence[MessageExt], names: Sequence[str]) -> pa.RecordBatch:
    """Return the messages as one Arrow batch of these columns, in the given order."""
    arrays = [
        _properties(messages)
        if name == "properties"
        else pa.array(map(ALL_COLUMNS[name].value, messages), ALL_COLUMNS[name].arrow_type)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def _properties(messages: Sequence[MessageExt]) -> pa.MapArray:
    """Return the map column, from flat arrays: twice as fast as a list of pairs per message."""
    names: list[str] = []
    values: list[str] = []
    for message in messages:
        names += message.properties.keys()
        values += message.properties.values()
    ends = accumulate((len(message.properties) for message in messages), initial=0)
    text = pa.string()
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(names, text), pa.array(values, text)
    )


def _microseconds(time_ms: int) -> int | None:
    return time_ms * 1000 if abs(time_ms) <= INSTANT_MAX_MS else None


def _columns() -> tuple[Column, ...]:
    text, int32, int64 = pa.string(), pa.int32(), pa.int64()
    return (
        Column("topic", "string", text, attrgetter("topic")),
        Column("brokerName", "string", text, attrgetter("broker_name")),
        Column("queueId", "int", int32, attrgetter("queue_id")),
        Column("queueOffset", "bigint", int64, attrgetter("queue_offset")),
        Column("msgId", "string", text, attrgetter("msg_id")),
        Column("tags", "string", text, attrgetter("tags")),
        Column("keys", "array<string>", pa.list_(text), attrgetter("keys")),
        Column("properties", "map<string,string>", pa.map_(text, text), attrgetter("properties")),
        Column("flag", "int", int32, attrgetter("flag")),
        Column("sysFlag", "int", int32, attrgetter("sys_flag")),
        Column("reconsumeTimes", "int", int32, attrgetter("reconsume_times")),
        Column("body", "binary", pa.binary(), attrgetter("body")),
        Column("bornHost", "string", text, lambda m: format_address(m.born_host)),
        Column("bornTimestamp", "timestamp", INSTANT, lambda m: _microseconds(m.born_at_ms)),
        Column("storeTimestamp", "timestamp", INSTANT, lambda m: _microseconds(m.store_at_ms)),
    )


COLUMNS: Final = {column.name: column for column in _columns()}
"""The columns by name, in the order of the schema."""

OFFSET_MSG_ID: Final = Column("offsetMsgId", "string", pa.string(), attrgetter("offset_msg_id"))
"""The column that the option includeOffsetMsgId adds. It identifies a stored message, except that
the messages of a batch that is stored as one record share it."""

ALL_COLUMNS: Final = {**COLUMNS, OFFSET_MSG_ID.name: OFFSET_MSG_ID}
"""All columns that are decoded from messages, by name."""

STORE_COLUMNS: Final = {
    column.name: column
    for column in (
        Column("commitLogOffset", "bigint", pa.int64()),
        Column("storeSize", "bigint", pa.int64()),
        Column("corrupt", "string", pa.string()),
    )
}
"""Further columns of a store directory, in the order of the schema."""
