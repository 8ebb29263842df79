"""Tables of a pipeline: each is computed once, and written as Parquet if a directory is given."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from kourou.errors import UsageError
from kourou.pipelines.directories import SINK_LOG

log = logging.getLogger(__name__)

SUCCESS_FILE: Final = "_SUCCESS"
"""Spark writes it into a directory whose table is complete."""


class Tables:
    """Computes the tables of one run; a context manager that releases cached tables.

    Args:
        directory: receives a subdirectory of Parquet files for each table; None: tables are
            cached during the run.
        overwrite: replace the tables of an earlier run.
    """

    def __init__(self, directory: str | None = None, *, overwrite: bool = False) -> None:
        self.directory = directory
        self._overwrite = overwrite
        self._cached: list[DataFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for frame in self._cached:
            frame.unpersist()
        self._cached.clear()

    def add(self, name: str, frame: DataFrame, *, replace: bool = False) -> DataFrame:
        """Return the table as computed once: read from its files, or cached.

        Args:
            name: the table's name.
            frame: its rows.
            replace: replace the table of an earlier run also without `overwrite`.

        Raises:
            UsageError: the table's directory contains a complete table, or other files.
        """
        if self.directory is None:
            return self.cache(frame)
        path = self._path(name)
        if not replace:
            check_replaceable(path, overwrite=self._overwrite)
        frame.write.mode("overwrite").parquet(path)
        return frame.sparkSession.read.parquet(path)

    def cache(self, frame: DataFrame) -> DataFrame:
        """Return a table that is computed once and not written."""
        cached = frame.persist()
        self._cached.append(cached)
        return cached

    def check(self, *names: str) -> None:
        """Refuse before a long read what `add` would refuse after it.

        Raises:
            UsageError: as `add`.
        """
        for name in names:
            if self.directory is not None:
                check_replaceable(self._path(name), overwrite=self._overwrite)

    def appended(self, name: str, spark: SparkSession) -> AppendedTable:
        """Return a table that is extended by each run."""
        return AppendedTable(spark, None if self.directory is None else self._path(name))

    def _path(self, name: str) -> str:
        assert self.directory is not None
        return f"{self.directory.rstrip('/')}/{name}"


class AppendedTable:
    """A table that grows by small batches: in a directory, or in memory during the run.

    Args:
        spark: the session.
        path: directory of Parquet files; None: in memory.
    """

    def __init__(self, spark: SparkSession, path: str | None) -> None:
        self._spark = spark
        self._path = path
        self._batches: list[pa.Table] = []

    def append(self, rows: pa.Table) -> None:
        """Add rows; with a directory they are stored when this returns."""
        if self._path is None:
            self._batches.append(rows)
        elif rows.num_rows:
            self._spark.createDataFrame(rows).coalesce(1).write.mode("append").parquet(self._path)

    def frame(self, schema: pa.Schema) -> DataFrame:
        """Return all rows, those of earlier runs included."""
        if self._path is not None:
            try:
                return self._spark.read.parquet(self._path)
            except AnalysisException:
                log.debug("table.missed path=%s", self._path)  # no run has added a row
        return self._spark.createDataFrame(pa.concat_tables([schema.empty_table(), *self._batches]))


class Plans(Tables):
    """Collects the tables and their plans, and computes none."""

    def __init__(self) -> None:
        super().__init__()
        self._frames: dict[str, DataFrame] = {}

    def add(self, name: str, frame: DataFrame, *, replace: bool = False) -> DataFrame:  # noqa: ARG002
        """Return the table as it is."""
        self._frames[name] = frame
        return frame

    def cache(self, frame: DataFrame) -> DataFrame:
        """Return the table as it is."""
        return frame

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the name and Spark's plan of each table."""
        yield from plan_texts(self._frames)


def plan_texts(frames: Mapping[str, DataFrame]) -> Iterator[tuple[str, str]]:
    """Yield the name and Spark's plan of each table."""
    for name, frame in frames.items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            frame.explain(mode="formatted")
        yield name, printed.getvalue().strip()


def check_replaceable(path: str, *, overwrite: bool = False) -> None:
    """Accept a local directory that is absent, empty, or the rest of a write that was killed.

    Other file systems, such as hdfs://, are not checked.

    Args:
        path: the directory.
        overwrite: accept all but the table of a stream, whose checkpoint would not match another.

    Raises:
        UsageError: the directory contains a complete table, or files that no write left.
    """
    directory = Path(path)
    if "://" in path or not directory.exists() or (overwrite and not directory.is_dir()):
        return
    if not directory.is_dir():
        raise UsageError(f"{path} is a file: name a directory that does not exist")
    names = {entry.name for entry in directory.iterdir()}
    if SINK_LOG in names:
        raise UsageError(
            f"{path} contains the table of a stream: continue it with --new or --follow, or choose "
            "another directory"
        )
    if overwrite:
        return
    if SUCCESS_FILE in names:
        raise UsageError(
            f"{path} contains the table of an earlier run: choose another directory, or add "
            "--overwrite"
        )
    foreign = sorted(name for name in names if not name.startswith(("_temporary", "part-", ".")))
    if foreign:
        raise UsageError(
            f"{path} contains {foreign[0]}, which is not of a pipeline: choose another directory"
        )
