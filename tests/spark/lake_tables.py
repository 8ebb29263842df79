"""Content of the tables that the programs of docs/lakehouse.md write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog


def _delta(directory: Path) -> pa.Table:
    return DeltaTable(directory / "orders.delta").to_pyarrow_table()


def _iceberg(directory: Path) -> pa.Table:
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{directory}/orders.catalog")
    return catalog.load_table("shop.orders").scan().to_arrow()


TABLES: Final[Mapping[str, Callable[[Path], pa.Table]]] = MappingProxyType(
    {"Delta": _delta, "Iceberg": _iceberg}
)
"""Heading of each program to the reader of its table."""


def bodies(table: str, directory: Path) -> list[int]:
    """Return the bodies of all rows, which are numbers, in their order.

    Raises:
        AssertionError: two rows are of one message.
    """
    rows = TABLES[table](directory).select(["queueId", "queueOffset", "body"]).to_pylist()
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == len(rows)
    return sorted(int(row["body"]) for row in rows)
