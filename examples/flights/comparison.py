"""Comparison of the data set with the flights that arrived."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset


@dataclass(frozen=True)
class Comparison:
    """Differences between the data set and the flights that arrived.

    Attributes:
        missing: flights of the data set that did not arrive.
        unknown: ids that arrived and are not in the data set.
    """

    missing: list[str]
    unknown: list[str]


def compare_ids(expected: Iterable[str], arrived: Iterable[str]) -> Comparison:
    """Return the missing and the unknown flight ids, sorted."""
    wanted, got = set(expected), set(arrived)
    return Comparison(sorted(wanted - got), sorted(got - wanted))


def read_parquet(directory: Path) -> pa.Table:
    """Return the Parquet written by Spark, with its partition column `month`."""
    partitioning = pyarrow.dataset.partitioning(pa.schema([("month", pa.int32())]), flavor="hive")
    return pyarrow.dataset.dataset(directory, partitioning=partitioning).to_table()


def differing_columns(expected: pa.Table, arrived: pa.Table) -> list[str]:
    """Return the columns of `expected` that differ for any flight.

    Both tables must have the same flights.
    """
    wanted = expected.sort_by("flight_id")
    got = arrived.sort_by("flight_id")
    return [
        name
        for name in wanted.column_names
        if not got[name].cast(wanted[name].type).equals(wanted[name])
    ]
