"""Modules of the demo: unique flight ids, growing ledgers, comparisons."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

FLIGHTS = Path(__file__).parent.parent.parent / "examples" / "flights"


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    """Make the demo's modules importable, as when it runs as a script."""
    sys.path.insert(0, str(FLIGHTS))
    yield
    sys.path.remove(str(FLIGHTS))


def module(name: str) -> ModuleType:
    return import_module(name)


def entry(flight_id: str, queue_offset: int, late: int = 0) -> bytes:
    line: bytes = module("ledger").Entry(flight_id, 3, queue_offset, late, late * 20).line()
    return line


def test_flight_is_published_with_a_unique_id_and_all_columns() -> None:
    data = module("data")

    flights = list(data.flights_of(data.load_flights(2_000)))

    first = json.loads(flights[0].body)
    assert len({flight.flight_id for flight in flights}) == 2_000
    assert flights[0].flight_id == first["flight_id"] == "2013-01-01-UA-1545-EWR"
    assert flights[0].carrier == first["carrier"] == "UA"
    assert first["dep_delay"] == 2
    assert first["time_hour"] == "2013-01-01T10:00:00Z"
    assert len(first) == 20


def test_ledgers_are_read_line_by_line_while_they_grow(tmp_path: Path) -> None:
    files = [tmp_path / "1.txt", tmp_path / "2.txt"]
    ledgers = module("ledger").Ledgers(files)
    ledgers.read_new_lines()
    assert ledgers.deliveries == 0

    second = entry("b", 1)
    files[0].write_bytes(entry("a", 0, late=1) + second[:5])
    ledgers.read_new_lines()
    assert ledgers.deliveries == 1

    with files[0].open("ab") as stream:
        stream.write(second[5:] + entry("a", 0, late=1))
    files[1].write_bytes(entry("a", 7, late=4))
    ledgers.read_new_lines()

    assert ledgers.deliveries == 4
    assert ledgers.flights == {"a": 3, "b": 1}
    assert ledgers.records == {(3, 0), (3, 1), (3, 7)}
    assert (ledgers.late, ledgers.minutes) == (5, 100)


def test_missing_and_unknown_ids_are_found() -> None:
    comparison = module("comparison").compare_ids(["a", "b", "c"], ["b", "c", "c", "x"])

    assert comparison.missing == ["a"]
    assert comparison.unknown == ["x"]


def test_differing_value_is_found_in_any_row_order() -> None:
    differing_columns = module("comparison").differing_columns
    flights = pa.table({"flight_id": ["a", "b"], "delay": [1, None]})
    turned = pa.table({"flight_id": ["b", "a"], "delay": pa.array([None, 1], pa.int32())})
    changed = pa.table({"flight_id": ["b", "a"], "delay": [0, 1]})

    assert differing_columns(flights, turned) == []
    assert differing_columns(flights, changed) == ["delay"]
