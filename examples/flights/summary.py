"""Summary of the demo: messages sent, flights that arrived, and the differences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison import Comparison
from publish import Publication
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """All results of the demo.

    Attributes:
        total: number of flights to publish.
        publication: counters and latencies of the publication.
        stored: messages in the topic at the end.
        deliveries: messages delivered to the counting processes, including redeliveries.
        records: distinct stored messages among the deliveries.
        consumed: comparison of the delivered flights with the data set.
        late: late flights counted by the processes. A process counts a flight once; a flight that
            was delivered to both, because its queue was reassigned, counts twice.
        late_expected: late flights of the data set.
        crash_seconds: time from kill -9 until the broker served again.
        rows: messages that the Spark job has read.
        spark: report of the Spark job.
        reported: comparison of the flights in the Parquet with the data set.
        differing: columns of the Parquet with other values than the data set.
        parquet: directory of the Parquet.
        charts: page of charts.
        seconds: duration of the demo.
    """

    total: int
    publication: Publication
    stored: int
    deliveries: int
    records: int
    consumed: Comparison
    late: int
    late_expected: int
    crash_seconds: float
    rows: int
    spark: dict[str, Any]
    reported: Comparison
    differing: list[str]
    parquet: Path
    charts: Path
    seconds: float

    @property
    def lost(self) -> int:
        """The number of flights of the data set that the group or the Parquet lacks."""
        return len({*self.consumed.missing, *self.reported.missing})

    @property
    def problems(self) -> list[str]:
        """Descriptions of failed checks; empty if there are none."""
        publication, spark = self.publication, self.spark
        checks = [
            (publication.sent == self.total, f"{self.total} flights, {publication.sent} sent"),
            (
                publication.acknowledged == publication.sent,
                f"{len(publication.failures)} sends raised, the first: {publication.failures[:1]}",
            ),
            (
                publication.on_disk == publication.acknowledged,
                f"{publication.acknowledged} acknowledged, {publication.on_disk} as on disk",
            ),
            (not self.consumed.missing, f"not consumed: {_sample(self.consumed.missing)}"),
            (
                not self.consumed.unknown,
                f"consumed, never sent: {_sample(self.consumed.unknown)}",
            ),
            (
                self.records == self.stored,
                f"{self.stored} messages stored, {self.records} of them consumed",
            ),
            (
                self.rows == self.stored,
                f"{self.stored} messages stored, {self.rows} rows read by Spark",
            ),
            (
                spark["flights"] == self.total,
                f"{self.total} flights, {spark['flights']} in the Parquet",
            ),
            (not self.reported.missing, f"not in the Parquet: {_sample(self.reported.missing)}"),
            (
                not self.reported.unknown,
                f"in the Parquet, never sent: {_sample(self.reported.unknown)}",
            ),
            (not self.differing, f"other values in the Parquet: {', '.join(self.differing)}"),
        ]
        return [problem for is_well, problem in checks if not is_well]


def print_worst_routes(console: Console, spark: dict[str, Any]) -> None:
    """Print the routes with the longest delays, from the Spark job."""
    table = Table(title=f"The {len(spark['worst'])} worst routes by mean delay at departure")
    table.add_column("route")
    for name in ("departures", "delay, min", "wind, mph", "visibility, mi"):
        table.add_column(name, justify="right")
    for route in spark["worst"]:
        table.add_row(
            f"{route['origin']} to {route['dest']}",
            f"{route['departed']:,}",
            *(_number(route[n]) for n in ("delay_minutes", "wind_mph", "visibility_miles")),
        )
    console.print(table)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print the table of results, followed by the problems."""
    table = Table(title="From the data set to Spark", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in _rows(outcome):
        table.add_row(*row)
    console.print(table)
    console.print(f"The Parquet, one directory a month: {outcome.parquet}", soft_wrap=True)
    console.print(f"Charts of the run and of the delays: {outcome.charts}", soft_wrap=True)
    for problem in outcome.problems:
        console.print(f"[bold red]wrong:[/] {problem}", soft_wrap=True)


def _rows(outcome: Outcome) -> list[tuple[str, str, str]]:
    """Return the rows of the table: (name, figure, explanation)."""
    publication, spark = outcome.publication, outcome.spark
    twice = outcome.stored - outcome.total
    flights = outcome.total - len(outcome.consumed.missing)
    again = outcome.deliveries - outcome.records
    rate = publication.acknowledged / publication.seconds
    p50, p99, p100 = (publication.latency_ms(share) for share in (0.5, 0.99, 1))
    notes = {
        "stored": f"{twice:,} twice: the crash lost their answers" if twice else "",
        "rate": f"in {publication.seconds:.1f} s, {outcome.crash_seconds:.1f} s without a broker",
    }
    return [
        ("sent", f"{publication.sent:,}", "flights, one message each"),
        ("acknowledged", f"{publication.acknowledged:,}", f"{publication.on_disk:,} as on disk"),
        ("stored", f"{outcome.stored:,}", notes["stored"] or "each once"),
        ("consumed", f"{flights:,}", f"flights, in {outcome.deliveries:,} deliveries"),
        ("redelivered", f"{again:,}", "deliveries beyond the first of a message"),
        ("lost", f"{outcome.lost:,}", "of the data set, compared flight by flight"),
        ("late", f"{outcome.late:,}", f"counted live; the data set has {outcome.late_expected:,}"),
        ("messages/s", f"{rate:,.0f}", notes["rate"]),
        (
            "p50, p99",
            f"{p50:,.0f}, {p99:,.0f} ms",
            f"from send to answer; the longest {p100:,.0f} ms",
        ),
        ("Spark rows", f"{outcome.rows:,}", "stored messages, read as a stream"),
        ("Parquet", f"{spark['flights']:,}", f"flights, {spark['with_weather']:,} with weather"),
        ("demo", f"{outcome.seconds:.0f} s", "from start to here, Spark's own start included"),
    ]


def _sample(names: list[str]) -> str:
    return f"{len(names)} flights, such as {', '.join(names[:3])}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
