"""Tests of docs/lakehouse.md: a batch that the table has is not written again after a restart.

`tests/spark/kills` kills the driver at that moment; here the checkpoint is put back to it.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message
from tests.spark.conftest import Publish
from tests.spark.lake_tables import TABLES, bodies
from tests.spark.page_programs import located, programs

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("table", TABLES)
def test_repeated_batch_is_in_the_table_once(
    table: str,
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = f"lake-{table.lower()}"
    program = located(programs("lakehouse.md")[table], namesrv, topic, tmp_path)
    program = program.replace("50000", "200")
    publish([Message(topic, b"%d" % number) for number in range(500)])

    run(program)
    assert "500 rows in the table" in capsys.readouterr().out
    commit = tmp_path / "orders.checkpoint" / "commits" / "2"
    commit.unlink()
    (commit.parent / ".2.crc").unlink(missing_ok=True)
    publish([Message(topic, b"%d" % number) for number in range(500, 600)])
    run(program)

    assert commit.exists(), "the batch was not repeated"
    assert "600 rows in the table" in capsys.readouterr().out
    assert bodies(table, tmp_path) == list(range(600))


def run(program: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(program, "docs/lakehouse.md", "exec"), {"__name__": "__main__"})  # noqa: S102
