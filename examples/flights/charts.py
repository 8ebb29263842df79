"""The charts: messages over the run, and the delays that Spark found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from data import AIRPORTS

from kourou.pipelines.charts import Bars, Chart, Lines

Points = list[tuple[int, float]]


@dataclass
class History:
    """Counts of messages over the run, as points of (epoch ms, messages).

    Attributes:
        acknowledged: messages that the broker has confirmed to the producer.
        counted: messages delivered to the push group.
        streamed: messages that Spark has committed.
    """

    acknowledged: Points = field(default_factory=list)
    counted: Points = field(default_factory=list)
    streamed: Points = field(default_factory=list)

    def add(self, at_ms: int, acknowledged: int, counted: int, streamed: int) -> None:
        """Add a point to each line."""
        self.acknowledged.append((at_ms, acknowledged))
        self.counted.append((at_ms, counted))
        self.streamed.append((at_ms, streamed))


def charts_of(history: History, report: dict[str, Any]) -> list[Chart]:
    """Return the charts.

    Args:
        history: the counts of the run.
        report: the report of the Spark job.
    """
    weeks: dict[str, Points] = {airport: [] for airport in AIRPORTS}
    for row in report["weeks"]:
        if row["delay_minutes"] is not None:
            weeks[row["origin"]].append((row["week_ms"], row["delay_minutes"]))
    carriers = {
        row["carrier"]: row["delay_minutes"]
        for row in report["carriers"]
        if row["delay_minutes"] is not None
    }
    return [
        Lines(
            title="Messages over the run, with a kill of the broker midway",
            unit="messages",
            series={
                "acknowledged to the producer": history.acknowledged,
                "counted by the push group": history.counted,
                "in the Parquet": history.streamed,
            },
        ),
        Lines(
            title="Lag behind the producer",
            unit="messages",
            series={
                "push group": _lag(history.acknowledged, history.counted),
                "Spark": _lag(history.acknowledged, history.streamed),
            },
        ),
        Lines(title="Mean delay at departure by week", unit="minutes", series=weeks),
        Bars(title="Mean delay at departure by carrier", unit="minutes", bars=carriers),
    ]


def _lag(sent: Points, received: Points) -> Points:
    """Return the messages that are acknowledged and not yet received, at each point."""
    return [
        (at_ms, max(0.0, ahead - behind))
        for (at_ms, ahead), (_, behind) in zip(sent, received, strict=True)
    ]
