"""Bodies decoded while they are read: JSON objects become a struct column. Pure.

A body fits the schema if it is a JSON object whose fields have their types or are null; absent
fields are null, and further fields are ignored:

    BOOLEAN, STRING            true, false; a string
    TINYINT to BIGINT          a number without fraction and exponent, in the type's range
    FLOAT, DOUBLE              a number
    DECIMAL(p, s)              a number, or a string with one, that needs no rounding
    BINARY                     a string in base64
    DATE                       a string, 2026-11-24
    TIMESTAMP                  a string with an offset from UTC, 2026-11-24T01:02:03.456Z
    TIMESTAMP_NTZ              a string without one
    ARRAY, MAP, STRUCT         an array; an object with any names; an object with these fields

Each body is decoded apart from the others, so that one cannot change the values of another.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from kourou.errors import ConfigError, MalformedMessageError
from kourou.spark.body_schema import parse_body_schema, spark_ddl, spark_type
from kourou.spark.option_table import BadBodyMode
from kourou.spark.read_options import ColumnOptions
from kourou.spark.schema import ALL_COLUMNS, COLUMNS, OFFSET_MSG_ID, Column, arrow_schema

BODY: Final = "body"
_POSITION: Final = ("topic", "brokerName", "queueId", "queueOffset")
"""The columns that identify a message."""

_UNFIT: Final = (ValueError, OverflowError, RecursionError)
"""Errors of bodies that are not JSON or do not fit, by msgspec and Arrow."""


def read_columns(options: ColumnOptions) -> dict[str, Column]:
    """Return the columns of a read by name, in their order.

    Raises:
        ConfigError: bodySchema does not parse, or columnNameOfCorruptRecord names another column.
    """
    columns = dict(COLUMNS)
    if not options.include_body:
        del columns[BODY]
    if not options.include_properties:
        del columns["properties"]
    if options.include_offset_msg_id:
        columns[OFFSET_MSG_ID.name] = OFFSET_MSG_ID
    if options.body_schema is not None:
        kind = parse_body_schema(options.body_schema)
        columns[BODY] = Column(BODY, spark_type(kind), kind, ddl_type=spark_ddl(kind))
    if options.corrupt_column is not None:
        if options.corrupt_column in ALL_COLUMNS:
            raise ConfigError(
                f"columnNameOfCorruptRecord is {options.corrupt_column!r}, which is the name of "
                "another column: choose a different one"
            )
        columns[options.corrupt_column] = Column(options.corrupt_column, "string", pa.string())
    return columns


class BodyDecoder:
    """Converts batches of records into those of a read, with bodies decoded.

    Attributes:
        record_names: the columns that `convert` needs from `record_columns.decode_answers`.
        schema: the Arrow schema of converted batches.
    """

    def __init__(
        self,
        options: ColumnOptions,
        names: Sequence[str],
        columns: Mapping[str, Column] | None = None,
    ) -> None:
        """Take the options and the columns of a read, in their order.

        `columns` are all columns of the read; by default those of a topic.
        """
        self._names = tuple(names)
        self._mode = options.mode
        self._corrupt_column = options.corrupt_column
        self.schema = arrow_schema(names, columns or read_columns(options))
        record_names = [name for name in names if name != options.corrupt_column]
        self._kind: pa.StructType | None = None
        if options.body_schema is not None and (
            # Without the column, only a mode that removes rows or fails needs the bodies.
            BODY in names
            or options.corrupt_column in names
            or options.mode is not BadBodyMode.PERMISSIVE
        ):
            self._kind = parse_body_schema(options.body_schema)
            needed = (BODY, *(_POSITION if options.mode is BadBodyMode.FAIL else ()))
            record_names += [name for name in needed if name not in record_names]
        self.record_names = tuple(record_names)
        self._json = JsonDecoder(self._kind) if self._kind is not None else None

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the columns of the read; fewer of them in mode dropMalformed.

        Raises:
            MalformedMessageError: a body does not fit bodySchema, and the mode is failFast.
        """
        if self._json is None:
            return batch
        stored = batch[BODY]
        bodies, reasons = self._json.decode(stored.to_pylist())
        if reasons and self._mode is BadBodyMode.FAIL:
            raise _unfit_error(batch, *min(reasons.items()))
        arrays = {name: batch[name] for name in batch.schema.names} | {BODY: bodies}
        if self._corrupt_column in self._names:
            texts: list[str | None] = [None] * len(stored)
            for row in reasons:
                texts[row] = stored[row].as_py().decode(errors="replace")
            arrays[self._corrupt_column] = pa.array(texts, pa.string())
        converted = pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._names], schema=self.schema
        )
        if reasons and self._mode is BadBodyMode.DROP:
            fits = np.ones(len(stored), np.bool_)
            fits[list(reasons)] = False
            return converted.filter(pa.array(fits))
        return converted


class JsonDecoder:
    """Decodes JSON objects into an Arrow struct column of one type."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(_value_type(kind)).decode

    def decode(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the column, with null for a body that does not fit, and the reasons by row."""
        values: list[Any] = []
        reasons: dict[int, str] = {}
        for row, body in enumerate(bodies):
            try:
                values.append(self._decode(body))
            except _UNFIT as error:
                values.append(None)
                reasons[row] = str(error)
        try:
            return _build_array(values, self._kind), reasons
        except _UNFIT:  # rare: values that only Arrow's type excludes, such as too many decimals
            for row, value in enumerate(values):
                try:
                    _build_array([value], self._kind)
                except _UNFIT as error:
                    values[row] = None
                    reasons[row] = str(error)
            return _build_array(values, self._kind), reasons


def _unfit_error(batch: pa.RecordBatch, row: int, reason: str) -> MalformedMessageError:
    topic, broker, queue, offset = (batch[name][row].as_py() for name in _POSITION)
    return MalformedMessageError(
        f"message {offset} of queue {queue} of {topic} on {broker}: its body does not fit "
        f"bodySchema: {reason}; to read on, use mode permissive or dropMalformed"
    )


_VALUE_TYPES: Final = {
    pa.bool_(): bool,
    pa.int8(): Annotated[int, msgspec.Meta(ge=-(1 << 7), lt=1 << 7)],
    pa.int16(): Annotated[int, msgspec.Meta(ge=-(1 << 15), lt=1 << 15)],
    pa.int32(): Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)],
    pa.int64(): Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    pa.float32(): float,
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): dt.date,
    pa.timestamp("us", tz="UTC"): Annotated[dt.datetime, msgspec.Meta(tz=True)],
    pa.timestamp("us"): Annotated[dt.datetime, msgspec.Meta(tz=False)],
}
"""Python types by Arrow type, with the ranges that msgspec verifies."""


def _value_type(kind: pa.DataType) -> Any:  # noqa: ANN401 - a type for msgspec
    """Return the Python type of a value of this Arrow type."""
    if pa.types.is_struct(kind):
        # Slots have numbers, because a name in JSON need not be one in Python.
        fields = [(_slot(at), _value_type(kind[at].type) | None, None) for at in range(len(kind))]
        rename = {_slot(at): kind[at].name for at in range(len(kind))}
        return msgspec.defstruct("Body", fields, rename=rename, gc=False)
    if pa.types.is_map(kind):
        return dict[str, _value_type(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_value_type(kind.value_type) | None]  # type: ignore[misc]
    return decimal.Decimal if pa.types.is_decimal(kind) else _VALUE_TYPES[kind]


def _slot(at: int) -> str:
    return f"f{at}"


def _build_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the decoded values as an Arrow array."""
    if pa.types.is_struct(kind):
        mask = [value is None for value in values]
        columns = []
        for at, field in enumerate(kind):
            slot = _slot(at)
            # An absent object has no slots, and so the default.
            columns.append(_build_array([getattr(one, slot, None) for one in values], field.type))
        return pa.StructArray.from_arrays(
            columns, fields=list(kind), mask=pa.array(mask, pa.bool_())
        )
    if not pa.types.is_list(kind) and not pa.types.is_map(kind):
        return pa.array(values, kind)
    sizes = (0 if value is None else len(value) for value in values)
    # A null offset makes its list null.
    absent = np.array([*(value is None for value in values), False])
    offsets = pa.array(np.array([*accumulate(sizes, initial=0)], np.int32), mask=absent)
    present = [value for value in values if value is not None]
    if pa.types.is_list(kind):
        items = _build_array(list(chain.from_iterable(present)), kind.value_type)
        return pa.ListArray.from_arrays(offsets, items)
    names = pa.array(list(chain.from_iterable(present)), pa.string())
    inner = chain.from_iterable(value.values() for value in present)
    return pa.MapArray.from_arrays(offsets, names, _build_array(list(inner), kind.item_type))
