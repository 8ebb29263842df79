"""Metrics of a run of a stream, from Spark's progress of each batch. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TRIGGERS_MAX: Final = 10_000
"""Maximum number of batches whose durations are kept, the latest ones."""

DUPLICATES_KEY: Final = "numDroppedDuplicateRows"
"""Spark's name of the count of duplicates, among the metrics of its operator."""


@dataclass(slots=True)
class QueryMetrics:
    """Counts of one query in one run.

    Attributes:
        rows: rows read.
        batches: batches that were run, those without rows included.
        late: rows that the watermark dropped, as Spark counts them. Before an aggregation Spark
            counts groups instead: then the caller adds to `late_rows`.
        late_rows: rows that the watermark dropped, as counted by the caller.
        duplicates: rows dropped as duplicates.
        open: rows of the operator's state after the last batch.
        observed: the sums of observed metrics, by name.
        trigger_ms: duration of each batch.
    """

    rows: int = 0
    batches: int = 0
    late: int = 0
    late_rows: int | None = None
    duplicates: int = 0
    open: int = 0
    observed: dict[str, int] = field(default_factory=dict)
    trigger_ms: deque[int] = field(default_factory=lambda: deque(maxlen=TRIGGERS_MAX))

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add the progress of a trigger, as Spark gives it in JSON."""
        operators = progress.get("stateOperators") or ()
        self.open = sum(one["numRowsTotal"] for one in operators)
        durations = progress.get("durationMs") or {}
        if "addBatch" not in durations:  # a trigger that found nothing to do
            return
        self.batches += 1
        self.trigger_ms.append(int(durations["triggerExecution"]))
        self.rows += int(progress["numInputRows"])
        for one in operators:
            self.late += one["numRowsDroppedByWatermark"]
            self.duplicates += one.get("customMetrics", {}).get(DUPLICATES_KEY, 0)
        for observation in (progress.get("observedMetrics") or {}).values():
            for name, value in observation.items():
                self.observed[name] = self.observed.get(name, 0) + int(value or 0)


def summary(queries: Iterable[QueryMetrics]) -> dict[str, int | float]:
    """Return the metrics of a run by name, for a report.

    Args:
        queries: the queries of the run; each reads the same messages.
    """
    found = list(queries)
    triggers = sorted(ms for one in found for ms in one.trigger_ms)
    counts: dict[str, int | float] = {
        "read": max((one.rows for one in found), default=0),
        "batches": sum(one.batches for one in found),
        "late": sum(one.late if one.late_rows is None else one.late_rows for one in found),
    }
    for one in found:
        for name, value in one.observed.items():
            counts[name] = counts.get(name, 0) + value
    return counts | {f"trigger_p{share}_ms": _percentile(triggers, share) for share in (50, 99)}


def _percentile(ordered: list[int], share: int) -> int:
    """Return the smallest value that at least the share of all values does not exceed."""
    return ordered[-(-len(ordered) * share // 100) - 1] if ordered else 0
