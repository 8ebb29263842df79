"""Result of a pipeline: tables to print, metrics, notes and charts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kourou.pipelines.charts import Chart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Table:
    """A small table for people: the first rows of a result.

    Attributes:
        total: number of rows of the whole result.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    total: int

    def documents(self) -> list[dict[str, object]]:
        """Return the rows as JSON objects; times are ISO 8601 in UTC."""
        names = [words(name).replace(" ", "_") for name in self.columns]
        return [dict(zip(names, map(_json, row), strict=True)) for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a run.

    Attributes:
        tables: the tables to print, the most important first.
        metrics: counts of the tables, such as messages and rows set aside.
        stream: counts of this run of a stream, such as batches and late rows; otherwise empty.
        notes: sentences about what the tables lack.
        charts: the charts of `--plot`.
    """

    tables: Sequence[Table]
    metrics: Mapping[str, int | float]
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = field(default_factory=tuple)
    stream: Mapping[str, int | float] = field(default_factory=dict)


def first_rows(
    name: str, frame: DataFrame, columns: Iterable[str], order: Sequence[object], limit: int
) -> Table:
    """Return the first rows of a computed table, in an order; two Spark jobs.

    Args:
        name: name of the table.
        frame: the table.
        columns: the columns to show.
        order: arguments of `orderBy`.
        limit: maximum number of rows.
    """
    chosen = list(columns)
    rows = frame.orderBy(*order).select(*chosen).limit(limit).collect()
    return Table(name, chosen, [tuple(row) for row in rows], frame.count())


def words(name: str) -> str:
    """Return the words of a column's name in lower case: `latencyP99Ms` -> `latency p99 ms`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()


def epoch_ms(at: datetime) -> int:
    """Return the epoch ms of a timestamp that Spark returned: local time without a zone."""
    return round(at.timestamp() * 1000)


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    return value
