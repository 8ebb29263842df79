"""Rows as messages: the columns that the sink accepts, and the messages of Arrow batches. Pure.

    column            Spark type               content
    body              binary or string         required, not null; a string is sent as UTF-8
    topic             string                   the destination; the option topic overrides it
    tags              string                   one tag
    keys              array<string> or string  index keys; a string is one key
    properties        map<string,string>       user properties
    shardingKey       string                   rows with one key are sent to one queue, in order
    deliverTime       timestamp or bigint      delivery time; bigint: epoch milliseconds
    flag              int                      a number for the consumer
    msgId             string                   the unique id of a copy; null: a new one
    systemProperties  map<string,string>       reserved properties of a copy, not of its delivery

Except for body, all columns may be missing or null. A row that cannot be sent fails the write; the
error names the row.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from kourou.client.calls_send import Outgoing, encode_message
from kourou.errors import ConfigError, InvalidMessageError, UsageError
from kourou.model import properties as names
from kourou.model.message import Message
from kourou.model.message_checks import check_text
from kourou.model.topic import NOT_ALLOWED_SEND_TOPICS, check_topic
from kourou.spark.stamps import Stamps

SINK_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "deliverTime": ("timestamp", "bigint"),
    "flag": ("int",),
    "msgId": ("string",),
    "systemProperties": ("map<string,string>",),
}
"""The columns by name, with the Spark types that each may have."""

COPIED_PROPERTIES: Final = (
    names.RESERVED - set(names.DELIVERY_PROPERTIES) - {names.KEYS, names.TAGS, names.UNIQ_KEY}
)
"""Reserved properties that a copy may have: they do not describe a delivery, and have no column."""

_KEY_TYPES: Final = ("string", "tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The columns of a DataFrame to write, checked against `SINK_COLUMNS`.

    Attributes:
        columns: the column names, in order.
        topic: the destination of all rows; None: the column topic.
        key_column: the column that identifies a row within its batch; None: its position does.
        body_bytes_max: largest body in bytes.
    """

    columns: tuple[str, ...]
    topic: str | None
    key_column: str | None
    body_bytes_max: int


class SinkRow(NamedTuple):
    """One row to send.

    Attributes:
        number: the row's number in its partition.
        outgoing: the encoded message.
        sharding_key: selects the queue; None: any queue.
        is_alone: the message cannot be part of a batch, because it has a delivery time, or
            reserved properties that may not be allowed there.
    """

    number: int
    outgoing: Outgoing
    sharding_key: str | None
    is_alone: bool


def row_format(
    fields: Iterable[tuple[str, str]],
    *,
    topic: str | None,
    key_column: str | None,
    body_bytes_max: int,
) -> RowFormat:
    """Return the format of rows with these columns.

    Args:
        fields: (name, type in Spark's DDL) of each column.
        topic: value of the option topic.
        key_column: value of the option keyColumn.
        body_bytes_max: value of the option maxMessageBytes.

    Raises:
        ConfigError: a column is missing, unknown or of another type.
    """
    listed = list(fields)
    types = dict(listed)
    if len(types) < len(listed):
        names_listed = ", ".join(name for name, _ in listed)
        raise ConfigError(f"a column occurs twice among {names_listed}: select each once")
    for name, kind in listed:
        if name in SINK_COLUMNS or name != key_column:
            _check_column(name, kind)
    if "body" not in types:
        raise ConfigError("the column body is missing: rename the payload to body")
    if topic is None and "topic" not in types:
        raise ConfigError(
            "the destination is missing: use .option('topic', ...), or add a column topic"
        )
    if key_column is not None and types.get(key_column) not in _KEY_TYPES:
        known = f"has the type {types[key_column]}" if key_column in types else "does not exist"
        raise ConfigError(
            f"keyColumn is {key_column!r}, but that column {known}: name one of the types "
            f"{', '.join(_KEY_TYPES)}"
        )
    return RowFormat(tuple(types), topic, key_column, body_bytes_max)


def _check_column(name: str, kind: str) -> None:
    expected = SINK_COLUMNS.get(name)
    if expected is None:
        near = difflib.get_close_matches(name, SINK_COLUMNS, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else "drop it, or name it as keyColumn;"
        raise ConfigError(
            f"the column {name!r} cannot be sent: {hint} columns are {', '.join(SINK_COLUMNS)}"
        )
    if kind not in expected:
        raise ConfigError(
            f"column {name} has the type {kind}, expected {' or '.join(expected)}: cast it before "
            "the write"
        )


def sink_rows(
    batch: pa.RecordBatch,
    row_format: RowFormat,
    stamps: Stamps,
    first_row: int,
    next_id: Callable[[], str],
) -> Iterator[SinkRow]:
    """Yield the rows of an Arrow batch as encoded messages, in order.

    Args:
        batch: the columns of `row_format`.
        row_format: as checked before the job.
        stamps: identify the rows.
        first_row: number of the batch's first row in the partition.
        next_id: returns a new unique id.

    Raises:
        InvalidMessageError: a row has no body or topic, a reserved property, or exceeds a limit.
    """
    columns = {
        name: _values(name, column)
        for name, column in zip(row_format.columns, batch.columns, strict=True)
    }
    if row_format.key_column is not None:
        key_at = row_format.columns.index(row_format.key_column)
        columns[_STAMP_KEY] = batch.column(key_at).to_pylist()
    if row_format.topic is not None:
        columns["topic"] = [row_format.topic] * batch.num_rows
    nulls = [None] * batch.num_rows
    checked_topics: set[str] = set()
    names_read = (*SINK_COLUMNS, _STAMP_KEY)
    for number, values in enumerate(
        zip(*(columns.get(name, nulls) for name in names_read), strict=True), first_row
    ):
        try:
            yield _sink_row(number, values, row_format, stamps, checked_topics, next_id)
        except UsageError as error:
            raise InvalidMessageError(f"{stamps.describe(number)}: {error}") from None


_STAMP_KEY: Final = "\x00key"
"""Name under which the values of the key column are listed; no column can have it."""


def _sink_row(
    number: int,
    values: Sequence[Any],
    row_format: RowFormat,
    stamps: Stamps,
    checked_topics: set[str],
    next_id: Callable[[], str],
) -> SinkRow:
    """Return one row; `values` are those of the columns of `SINK_COLUMNS` and the key."""
    topic, body, tags, keys, properties, *rest = values
    sharding_key, deliver_at_ms, flag, msg_id, system_properties, key = rest
    if topic not in checked_topics:
        _check_destination(topic)
        checked_topics.add(topic)
    if not body:
        raise InvalidMessageError(f"the body is {'null' if body is None else 'empty'}")
    if len(body) > row_format.body_bytes_max:
        raise InvalidMessageError(
            f"the body has {len(body)} bytes, more than maxMessageBytes, "
            f"{row_format.body_bytes_max}: split it, or raise the option and the broker's limit "
            "(maxMessageSize)"
        )
    own = {} if properties is None else dict(properties)
    if sharding_key is not None:
        own[names.SHARDING_KEY] = sharding_key
    if row_format.key_column is None:
        own[names.SPARK_ID] = stamps.of_row(number)
    elif key is None:
        raise InvalidMessageError(f"the column {row_format.key_column} (keyColumn) is null")
    else:
        own[names.SPARK_ID] = stamps.of_key(str(key))
    if msg_id is None:
        msg_id = next_id()
    else:
        check_text("msgId", msg_id)
    message = Message(
        topic,
        body,
        tags=tags,
        keys=keys or (),
        properties=own,
        flag=flag or 0,
        deliver_at_ms=deliver_at_ms or 0,
    )
    outgoing = encode_message(message, msg_id, _copied_properties(system_properties))
    is_alone = bool(deliver_at_ms or system_properties)
    return SinkRow(number, outgoing, sharding_key, is_alone)


def _copied_properties(pairs: Sequence[tuple[str, str]] | None) -> dict[str, str]:
    copied = dict(pairs or ())
    for name, value in copied.items():
        if name not in COPIED_PROPERTIES:
            raise InvalidMessageError(
                f"systemProperties has {name}, which is not a reserved property that copies keep: "
                "use a column of its own, or properties"
            )
        check_text(f"the value of property {name}", value)
    return copied


def _check_destination(topic: str | None) -> None:
    if topic is None:
        raise InvalidMessageError(
            "the topic is null: fill the column, or use .option('topic', ...) for all rows"
        )
    check_topic(topic)
    if topic in NOT_ALLOWED_SEND_TOPICS:
        raise InvalidMessageError(f"topic {topic} is reserved for brokers; choose another")


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return a column's values in the form that `_sink_row` expects."""
    if name == "body" and not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    elif name == "deliverTime" and pa.types.is_timestamp(column.type):
        # Rounded up: a message must not be delivered before its time.
        return [
            None if us is None else -(-us // 1000) for us in column.cast(pa.int64()).to_pylist()
        ]
    elif name == "keys" and not pa.types.is_nested(column.type):
        return [None if key is None else (key,) for key in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values
