"""The data source `rocketmq` of Spark: its name, schema, readers and writers.

Spark imports this module in a process of its own for each step of a plan: the search for data
sources, the schema, the plan of a read. Readers and writers import the clients, which takes half a
second, so each is imported where it is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from kourou.errors import KourouError, UsageError
from kourou.spark.body_format import read_columns
from kourou.spark.read_options import ReadOptions, check_read_options, parse_read_options
from kourou.spark.schema import Column, choose_columns, ddl
from kourou.spark.worker_errors import text_first

if TYPE_CHECKING:
    from kourou.spark.stream_reader import StreamReader
    from kourou.spark.writer import BatchWriter, StreamWriter


class RocketMQDataSource(DataSource):  # type: ignore[misc]  # PySpark is Any to us
    """Data source for topics: `spark.read.format("rocketmq").option("nameServer", ...)...load()`.

    `kourou.spark.options()` prints the options, `kourou.spark.schema` has the columns. Spark plans
    a DataFrame once: its first action determines the end of the read, and later ones see the same
    messages.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @text_first
    def schema(self) -> str:
        # Also parsed here, and not only in reader(), so that load() itself refuses wrong options.
        return ddl(_columns_of(check_read_options(self.options)))

    @text_first
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        options = parse_read_options(self.options, is_stream=False)
        columns = choose_columns(_declared(schema), _columns_of(options))
        if options.source.store_path is not None:
            from kourou.spark.store_reader import StoreReader  # noqa: PLC0415

            return StoreReader(options, columns)
        from kourou.spark.batch_reader import BatchReader  # noqa: PLC0415

        return BatchReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of the columns of `schema` for a streaming query.

        A wrong option, or a version of PySpark that cannot limit the batches of a Python source, is
        reported by the first call of the reader, because Spark loses an error of this one.
        """
        try:
            return self._stream_reader(schema)
        except KourouError as error:
            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> StreamReader:
        try:
            from kourou.spark.stream_reader import StreamReader  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                f"PySpark {pyspark.__version__} has no admission control for Python data sources, "
                "which streaming reads of rocketmq need: install pyspark>=4.2, or use spark.read"
            ) from None
        options = parse_read_options(self.options, is_stream=True)
        return StreamReader(options, choose_columns(_declared(schema), _columns_of(options)))

    @text_first
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        """Return a writer of rows with the columns of `schema`."""
        from kourou.spark.write_options import parse_write_options  # noqa: PLC0415
        from kourou.spark.writer import BatchWriter, refuse_overwrite  # noqa: PLC0415

        if overwrite:
            refuse_overwrite(is_stream=False)
        return BatchWriter(parse_write_options(self.options, is_stream=False), _fields(schema))

    @text_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001 - Spark's
        """Return a writer of the batches of a streaming query."""
        from kourou.spark.write_options import parse_write_options  # noqa: PLC0415
        from kourou.spark.writer import StreamWriter, refuse_overwrite  # noqa: PLC0415

        if overwrite:
            refuse_overwrite(is_stream=True)
        return StreamWriter(parse_write_options(self.options, is_stream=True), _fields(schema))


class RefusedStream(DataSourceStreamReader):  # type: ignore[misc]
    """Reader of a stream that cannot be read: each call of the planner raises the reason.

    If `streamReader` raises, Spark's planning process stops a reader that it does not have, and
    reports the error of that instead.
    """

    def __init__(self, error: KourouError) -> None:
        self._error = error

    @text_first
    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's names
        raise self._error

    @text_first
    def latestOffset(self) -> NoReturn:  # noqa: N802
        raise self._error

    @text_first
    def partitions(self, start: object, end: object) -> NoReturn:  # noqa: ARG002
        raise self._error

    @text_first
    def read(self, partition: object) -> NoReturn:  # noqa: ARG002
        raise self._error


def _columns_of(options: ReadOptions) -> dict[str, Column]:
    """Return the columns of a read by name, in their order."""
    if options.source.store_path is None:
        return read_columns(options.columns)
    from kourou.spark.store_rows import store_columns  # noqa: PLC0415

    return store_columns(options.columns)


def _declared(schema: StructType) -> list[tuple[str, str, bool]]:
    """Return (name, type in Spark's DDL, nullable) of each column that the user declares."""
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in schema]


def _fields(schema: StructType) -> list[tuple[str, str]]:
    """Return (name, type in Spark's DDL) of each column."""
    return [(field.name, field.dataType.simpleString()) for field in schema]
