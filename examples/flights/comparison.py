"""The data set against what arrived, flight by flight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset


@dataclass(frozen=True)
class Comparison:
    """The data set against what arrived somewhere.

    Attributes:
        missing: flights of the data set that did not arrive.
        unknown: what arrived and is no flight of the data set.
    """

    missing: list[str]
    unknown: list[str]


def compare_ids(expected: Iterable[str], arrived: Iterable[str]) -> Comparison:
    """Return what the flight ids that arrived lack, and have too much."""
    wanted, got = set(expected), set(arrived)
    return Comparison(sorted(wanted - got), sorted(got - wanted))


def read_parquet(directory: Path) -> pa.Table:
    """Return what Spark wrote, the partition column `carrier` with it."""
    partitioning = pyarrow.dataset.partitioning(
        pa.schema([("carrier", pa.string())]), flavor="hive"
    )
    return pyarrow.dataset.dataset(directory, partitioning=partitioning).to_table()


def differing_columns(expected: pa.Table, arrived: pa.Table) -> list[str]:
    """Return the columns of `expected` that differ for any flight; both have the same flights."""
    wanted = expected.sort_by("flight_id")
    got = arrived.sort_by("flight_id")
    return [
        name
        for name in wanted.column_names
        if not got[name].cast(wanted[name].type).equals(wanted[name])
    ]
