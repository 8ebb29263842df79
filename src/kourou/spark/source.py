"""The data source `rocketmq`, as Spark sees it: its name, its schema, and who reads."""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from kourou.errors import UsageError
from kourou.spark.batch_reader import BatchReader
from kourou.spark.options import parse_options
from kourou.spark.rows import choose_columns, ddl


class RocketMQDataSource(DataSource):  # type: ignore[misc]  # PySpark is Any to us
    """Reads a topic: `spark.read.format("rocketmq").option("nameServer", ...)...load()`.

    `kourou.spark.options` has the options, `kourou.spark.rows` the columns. The end of the read
    is settled anew for each action on the DataFrame; `.cache()` or numbers in endingOffsets make
    several actions see the same messages.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        # Here, and not only in reader(): a wrong option is then refused by load() itself.
        parse_options(self.options)
        return ddl()

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of the columns that `schema` asks for."""
        columns = choose_columns(
            (field.name, field.dataType.simpleString(), field.nullable) for field in schema
        )
        return BatchReader(parse_options(self.options), columns)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802, ARG002 - Spark's names
        raise UsageError(
            "streaming reads of rocketmq are not built yet; batch reads are: "
            'spark.read.format("rocketmq")'
        )

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, FBT001
        raise UsageError(_NO_WRITER)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802, ARG002, FBT001
        raise UsageError(_NO_WRITER)


_NO_WRITER = (
    "writing to rocketmq from Spark is not built yet; batch reads are. To send, use "
    "kourou.client.Producer, in foreachPartition for instance"
)
