"""The data source `rocketmq` of Spark: its name, schema and readers."""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from kourou.errors import UsageError
from kourou.spark.batch_reader import BatchReader
from kourou.spark.option_table import is_given
from kourou.spark.options import parse_options
from kourou.spark.read_options import parse_read_options
from kourou.spark.schema import choose_columns, ddl
from kourou.spark.store_reader import StoreReader
from kourou.spark.store_rows import store_columns
from kourou.spark.write_options import parse_write_options
from kourou.spark.writer import BatchWriter, StreamWriter, refuse_overwrite


class RocketMQDataSource(DataSource):  # type: ignore[misc]  # PySpark is Any to us
    """Data source for a topic: `spark.read.format("rocketmq").option("nameServer", ...)...load()`.

    `kourou.spark.options` describes the options, `kourou.spark.schema` the columns. Each action on
    the DataFrame determines the end of the read again. With `.cache()`, or with numbers in
    endingOffsets, several actions see the same messages.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        # Also parsed here, and not only in reader(), so that load() itself refuses wrong options.
        if is_given(self.options, "storePath"):
            return ddl(store_columns(parse_read_options(self.options, is_stream=False).columns))
        parse_options(self.options)
        return ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        fields = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema]
        if is_given(self.options, "storePath"):
            options = parse_read_options(self.options, is_stream=False)
            return StoreReader(options, choose_columns(fields, store_columns(options.columns)))
        return BatchReader(parse_options(self.options), choose_columns(fields))

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802, ARG002 - Spark's names
        raise UsageError(
            "streaming reads of rocketmq are not supported; use a batch read: "
            'spark.read.format("rocketmq")'
        )

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        """Return a writer of rows with the columns of `schema`."""
        if overwrite:
            refuse_overwrite(is_stream=False)
        return BatchWriter(parse_write_options(self.options, is_stream=False), _fields(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001 - Spark's
        """Return a writer of the batches of a streaming query."""
        if overwrite:
            refuse_overwrite(is_stream=True)
        return StreamWriter(parse_write_options(self.options, is_stream=True), _fields(schema))


def _fields(schema: StructType) -> list[tuple[str, str]]:
    """Return (name, type in Spark's DDL) of each column."""
    return [(field.name, field.dataType.simpleString()) for field in schema]
