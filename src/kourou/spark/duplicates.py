"""Removal of duplicate messages from a DataFrame of the data source, and copying of properties.

A message is stored twice if a producer repeats a send whose answer was lost, or if Spark repeats a
task. The copies of the first kind have one unique id. The copies of the second kind have one stamp
(`kourou.spark.stamps`). A stamp without a key is the position of a row, and a task that is repeated
may compute another row at that position. Such rows are kept: equal stamps count only with equal
content.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from kourou.errors import UsageError
from kourou.model import properties as names
from kourou.spark.stamps import KEYED_PATTERN

_ID_COLUMN: Final = "__kourou_id"
_NEEDED: Final = ("topic", "msgId", "properties")
_CONTENT: Final = ("body", "tags", "keys", "flag")


def dedup(df: DataFrame, *, watermark: str = "10 minutes") -> DataFrame:
    """Return the rows without duplicates; of several copies, one is kept.

    Of a stream, copies are found that are stored within the watermark of each other; the watermark
    is on storeTimestamp. Of a batch read, all copies are found.

    Args:
        df: read by the data source, with the columns topic, msgId and properties; a stream needs
            storeTimestamp as well. Columns of the content that it lacks are not compared.
        watermark: the delay, as for `DataFrame.withWatermark`; without effect on a batch read.

    Raises:
        UsageError: a column is missing.
    """
    needed = (*_NEEDED, "storeTimestamp") if df.isStreaming else _NEEDED
    if missing := [name for name in needed if name not in df.columns]:
        raise UsageError(
            f"dedup needs the columns {', '.join(needed)}, but the DataFrame lacks "
            f"{', '.join(missing)}: call it before select(), with includeProperties=true"
        )
    marked = df.withColumn(_ID_COLUMN, _identity(df))
    if df.isStreaming:
        marked = marked.withWatermark("storeTimestamp", watermark)
        return marked.dropDuplicatesWithinWatermark([_ID_COLUMN]).drop(_ID_COLUMN)
    return marked.dropDuplicates([_ID_COLUMN]).drop(_ID_COLUMN)


def user_properties(properties: Column | str = "properties") -> Column:
    """Return a properties column without the properties that the sink refuses or sets itself.

    Use it to write messages that were read: `df.withColumn("properties", user_properties())`.
    """
    column = sql.col(properties) if isinstance(properties, str) else properties
    dropped = sorted(names.RESERVED | {names.SHARDING_KEY, names.SPARK_ID})
    return sql.map_filter(column, lambda name, _: ~name.isin(dropped))


def _identity(df: DataFrame) -> Column:
    """Return a column that is equal for copies of one message only."""
    stamp = sql.element_at("properties", names.SPARK_ID)
    content = [sql.col(name) for name in _CONTENT if name in df.columns]
    users = sql.array_sort(sql.map_entries(user_properties()))
    unkeyed = sql.concat(stamp, sql.lit(":"), sql.xxhash64(*content, users))
    own = (
        sql.when(stamp.isNull(), sql.concat(sql.lit("id:"), sql.col("msgId")))
        .when(stamp.rlike(KEYED_PATTERN), stamp)
        .otherwise(unkeyed)
    )
    return sql.concat_ws("\x01", sql.col("topic"), own)
