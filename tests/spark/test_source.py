"""Tests of the data source's readers, without a Spark session."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema

from kourou.errors import ConfigError, UsageError
from kourou.spark.schema import COLUMNS, arrow_schema, ddl
from kourou.spark.source import RocketMQDataSource

OPTIONS = {"nameServer": "localhost:9876", "topic": "orders"}
SCHEMA = from_arrow_schema(arrow_schema(list(COLUMNS)))


def stream_reader(**options: str) -> DataSourceStreamReader:
    return RocketMQDataSource({**OPTIONS, **options}).streamReader(SCHEMA)


def test_stream_begins_at_a_constant_that_names_its_start() -> None:
    assert stream_reader().initialOffset() == {"version": 1, "starting": "startingOffsets latest"}
    assert stream_reader(startingTimestamp="-1h").initialOffset() == {
        "version": 1,
        "starting": "startingTimestamp",
    }


def test_tasks_of_a_batch_have_the_logged_range() -> None:
    reader = stream_reader(startingOffsets="earliest", maxPartitions="2")
    first = {
        "version": 1,
        "from": {"orders": {"a": {"0": 5, "1": 0}}},
        "until": {"orders": {"a": {"0": 9, "1": 0}}},
    }
    second = {"version": 1, "from": {}, "until": {"orders": {"a": {"0": 9, "1": 3}}}}

    [task] = reader.partitions(reader.initialOffset(), first)
    assert [(one.queue.queue_id, one.start, one.until) for one in task.value] == [(0, 5, 9)]
    [task] = reader.partitions(first, second)
    assert [(one.queue.queue_id, one.start, one.until) for one in task.value] == [(1, 0, 3)]
    assert reader.partitions(second, second) == []


def test_columns_may_be_left_out() -> None:
    source = RocketMQDataSource({**OPTIONS, "includeBody": "false", "includeProperties": "false"})

    assert "`body`" in ddl()
    assert "`properties`" in ddl()
    assert "`body`" not in source.schema()
    assert "`properties`" not in source.schema()
    with pytest.raises(ConfigError, match="unknown column"):
        source.reader(SCHEMA)


def test_option_of_batch_reads_is_refused_for_a_stream() -> None:
    reader = stream_reader(endingOffsets="latest")

    for call in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(ConfigError, match="endingOffsets"):
            call()
    reader.stop()


def test_pyspark_without_limits_for_python_streams_reads_batches_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "kourou.spark.stream_reader", raising=False)

    source = RocketMQDataSource(OPTIONS)

    source.reader(SCHEMA)
    with pytest.raises(UsageError, match=r"install pyspark>=4\.2, or use spark\.read"):
        source.streamReader(SCHEMA).initialOffset()


def test_the_schema_of_a_read_needs_no_pandas_client_or_reader() -> None:
    """Each process that plans a read pays for the imports."""
    heavy = {"pandas", "kourou.client.config", "kourou.protocol.registry", "kourou.store"}
    program = (
        "import sys, kourou.spark.source\n"
        f"kourou.spark.source.RocketMQDataSource({OPTIONS}).schema()\n"
        f"print(*sorted({heavy | {'kourou.spark.cluster'}} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout.split() == []
