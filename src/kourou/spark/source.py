"""The data source `rocketmq` of Spark: its name, schema, readers and writers.

Spark imports this module in a process of its own for each step of a plan: the search for data
sources, the schema, the plan of a read. Readers and writers import the clients, which takes half a
second, so each is imported where it is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from kourou.errors import UsageError
from kourou.spark.body_format import read_columns
from kourou.spark.read_options import ReadOptions, check_read_options, parse_read_options
from kourou.spark.schema import Column, choose_columns, ddl
from kourou.spark.worker_errors import text_first
from kourou.spark.write_options import parse_write_options

if TYPE_CHECKING:
    from kourou.spark.stream_reader import StreamReader
    from kourou.spark.writer import BatchWriter, StreamWriter


class RocketMQDataSource(DataSource):  # type: ignore[misc]  # PySpark is Any to us
    """Data source for topics: `spark.read.format("rocketmq").option("nameServer", ...)...load()`.

    `kourou.spark.options()` prints the options, `kourou.spark.schema` has the columns. Each action
    on a DataFrame determines the end of the read again. With `.cache()`, or with numbers in
    endingOffsets, several actions see the same messages.
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

    @text_first
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return a reader of the columns of `schema` for a streaming query.

        Raises:
            UsageError: this version of PySpark cannot limit the batches of a Python source.
        """
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
        from kourou.spark.writer import BatchWriter, refuse_overwrite  # noqa: PLC0415

        if overwrite:
            refuse_overwrite(is_stream=False)
        return BatchWriter(parse_write_options(self.options, is_stream=False), _fields(schema))

    @text_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001 - Spark's
        """Return a writer of the batches of a streaming query."""
        from kourou.spark.writer import StreamWriter, refuse_overwrite  # noqa: PLC0415

        if overwrite:
            refuse_overwrite(is_stream=True)
        return StreamWriter(parse_write_options(self.options, is_stream=True), _fields(schema))


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
