"""Readers and writers of message files: JSON lines, or Parquet if pyarrow is installed."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec

from kourou.errors import InvalidMessageError, PackageMissingError, UsageError
from kourou.store.tools.export import Row

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 16 * 1024 * 1024
_NO_HOST: Final = "127.0.0.1:0"
Advance = Callable[[int], None]
"""Called with the number of bytes read from a file."""


class RowFormat(StrEnum):
    """The format of a message file."""

    JSON = "json"
    PARQUET = "parquet"


_BY_EXTENSION: Final = {
    ".jsonl": RowFormat.JSON,
    ".ndjson": RowFormat.JSON,
    ".json": RowFormat.JSON,
    ".parquet": RowFormat.PARQUET,
}


def format_of(path: Path, requested: RowFormat | None) -> RowFormat:
    """Return the requested format, or the one of the file's extension.

    Raises:
        UsageError: the extension is unknown.
    """
    if requested is not None:
        return requested
    if str(path) == "-":
        return RowFormat.JSON
    found = _BY_EXTENSION.get(path.suffix.lower())
    if found is None:
        endings = ", ".join(_BY_EXTENSION)
        raise UsageError(f"{path} has none of the extensions {endings}: use --format")
    return found


class _JsonRow(msgspec.Struct, omit_defaults=False):
    """A row as JSON; only the topic and the body are required."""

    topic: str
    queue_id: int = 0
    queue_offset: int = 0
    msg_id: str = ""
    tags: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    system_properties: dict[str, str] | None = None
    flag: int = 0
    sys_flag: int = 0
    born_at_ms: int = 0
    born_host: str = _NO_HOST
    store_at_ms: int = 0
    store_host: str = _NO_HOST
    reconsume_times: int = 0
    body: str | None = None
    body_base64: str | None = None


class RowWriter(ABC):
    """Writes rows to a file."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """Write one row."""

    @abstractmethod
    def finish(self) -> None:
        """Write buffered rows; after this, the file is complete."""


class _JsonWriter(RowWriter):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, row: Row) -> None:
        fields: dict[str, Any] = dict(row)
        body: bytes = fields.pop("body")
        try:
            fields["body"] = body.decode()
        except UnicodeDecodeError:
            fields["body_base64"] = base64.b64encode(body).decode("ascii")
        self._file.write(msgspec.json.encode(fields) + b"\n")

    def finish(self) -> None:
        self._file.flush()


class _ParquetWriter(RowWriter):
    def __init__(self, file: BinaryIO) -> None:
        self._arrow, parquet = _pyarrow()
        self._schema = _schema(self._arrow)
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._rows: list[Row] = []
        self._bytes = 0

    def write(self, row: Row) -> None:
        self._rows.append(row)
        self._bytes += len(row["body"])
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self._write_batch()

    def _write_batch(self) -> None:
        if self._rows:
            batch = self._arrow.RecordBatch.from_pylist(self._rows, schema=self._schema)
            self._writer.write_batch(batch)
            self._rows, self._bytes = [], 0

    def finish(self) -> None:
        self._write_batch()
        self._writer.close()


def row_writer(file: BinaryIO, row_format: RowFormat) -> RowWriter:
    """Return a writer of rows to a file.

    Raises:
        PackageMissingError: the format needs a package that is not installed.
    """
    return _JsonWriter(file) if row_format is RowFormat.JSON else _ParquetWriter(file)


def read_rows(file: BinaryIO, row_format: RowFormat, advance: Advance) -> Iterator[Row]:
    """Return the rows of a file.

    Raises:
        InvalidMessageError: a row is not a valid message; the text names the row and the reason.
        PackageMissingError: the format needs a package that is not installed.
    """
    if row_format is RowFormat.JSON:
        return _read_json(file, advance)
    return _read_parquet(file, advance)


def _read_json(file: BinaryIO, advance: Advance) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_JsonRow)
    for number, line in enumerate(file, 1):
        advance(len(line))
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
            yield _row(row)
        except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
            raise InvalidMessageError(f"line {number:,} is not a message: {error}") from None


def _row(row: _JsonRow) -> Row:
    fields = msgspec.structs.asdict(row)
    text, encoded = fields.pop("body"), fields.pop("body_base64")
    if (text is None) == (encoded is None):
        raise msgspec.ValidationError("it must have either `body` or `body_base64`")
    body = base64.b64decode(encoded, validate=True) if text is None else text.encode()
    return cast(Row, {**fields, "body": body})


def _read_parquet(file: BinaryIO, advance: Advance) -> Iterator[Row]:
    arrow, parquet = _pyarrow()
    number = 0
    try:
        opened = parquet.ParquetFile(file)
        missing = {"topic", "body"} - set(opened.schema_arrow.names)
        if missing:
            raise InvalidMessageError(f"the file has no column {', '.join(sorted(missing))}")
        for batch in opened.iter_batches(batch_size=_BATCH_ROWS):
            for fields in batch.to_pylist():
                number += 1
                yield _parquet_row(fields, number)
            advance(batch.nbytes)
    except arrow.ArrowException as error:
        raise InvalidMessageError(f"not a valid Parquet file, at row {number:,}: {error}") from None


def _parquet_row(fields: dict[str, Any], number: int) -> Row:
    body = fields.pop("body", None)
    known = {name: fields[name] for name in _JsonRow.__struct_fields__ if name in fields}
    for name in ("properties", "system_properties"):
        if known.get(name) is not None:
            known[name] = dict(known[name])  # pyarrow returns a map as a list of pairs
    known = {name: value for name, value in known.items() if value is not None}
    try:
        row = msgspec.convert({**known, "body": ""}, _JsonRow)
    except msgspec.ValidationError as error:
        raise InvalidMessageError(f"row {number:,} is not a message: {error}") from None
    return cast(
        Row, {**_row(row), "body": body.encode() if isinstance(body, str) else bytes(body or b"")}
    )


def _schema(arrow: Any) -> Any:  # noqa: ANN401  # pyarrow has no types
    text, int32, int64 = arrow.string(), arrow.int32(), arrow.int64()
    texts = arrow.map_(text, text)
    return arrow.schema(
        [
            ("topic", text),
            ("queue_id", int32),
            ("queue_offset", int64),
            ("msg_id", text),
            ("tags", text),
            ("keys", arrow.list_(text)),
            ("properties", texts),
            ("system_properties", texts),
            ("flag", int32),
            ("sys_flag", int32),
            ("born_at_ms", int64),
            ("born_host", text),
            ("store_at_ms", int64),
            ("store_host", text),
            ("reconsume_times", int32),
            ("body", arrow.binary()),
        ]
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise PackageMissingError("Parquet", "pyarrow", "spark") from None
