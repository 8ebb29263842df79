"""Tests of the metrics of a run, from progress as Spark reports it."""

from __future__ import annotations

from typing import Any

from kourou.pipelines.stream_metrics import QueryMetrics, summary


def progress(rows: int, ms: int, **operator: Any) -> dict[str, Any]:
    state = {"numRowsTotal": 0, "numRowsDroppedByWatermark": 0, **operator}
    return {
        "numInputRows": rows,
        "durationMs": {"addBatch": ms - 1, "triggerExecution": ms},
        "stateOperators": [state],
    }


def test_batches_are_summed_and_the_state_is_the_last_one() -> None:
    query = QueryMetrics()
    query.add(progress(10, 100, numRowsTotal=7, numRowsDroppedByWatermark=1))
    query.add(
        progress(5, 300, numRowsTotal=4, customMetrics={"numDroppedDuplicateRows": 3})
        | {"observedMetrics": {"setAside": {"ahead": 2}}}
    )

    assert summary([query]) == {
        "read": 15,
        "batches": 2,
        "late": 1,
        "ahead": 2,
        "trigger_p50_ms": 100,
        "trigger_p99_ms": 300,
    }
    assert (query.open, query.duplicates) == (4, 3)


def test_a_trigger_without_a_batch_counts_nothing() -> None:
    query = QueryMetrics()
    idle = {"numInputRows": 0, "durationMs": {"latestOffset": 3, "triggerExecution": 3}}
    query.add(idle | {"stateOperators": [{"numRowsTotal": 2, "numRowsDroppedByWatermark": 0}]})

    assert summary([query])["batches"] == 0
    assert query.open == 2


def test_queries_of_a_run_read_the_same_messages_and_counted_late_rows_replace_groups() -> None:
    steps, spans = QueryMetrics(), QueryMetrics()
    steps.add(progress(10, 100))
    spans.add(progress(10, 200, numRowsDroppedByWatermark=1))
    spans.late_rows = 4

    counts = summary([steps, spans])

    assert (counts["read"], counts["batches"], counts["late"]) == (10, 2, 4)
