"""Tests of the progress of streams as computed from Spark's reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kourou.model.queue import MessageQueue
from kourou.spark.connection import ConnectionOptions
from kourou.spark.stream_offsets import Absence, StreamOffset
from kourou.spark.stream_progress import (
    CommitTarget,
    SourceProgress,
    offsets_behind,
    reported_latest,
    source_progress,
    stream_progress,
)
from kourou.spark.task_reports import TaskTotals

Q0, Q1, Q2 = (MessageQueue("flights", "broker-a", number) for number in range(3))
CONNECTION = ConnectionOptions(
    name_server="localhost:9876", use_tls=True, tls_ca_file="/etc/ca.pem", credentials_file="/keys"
)
TASKS = TaskTotals(tasks=2, repeated_tasks=0, rows=9, pulled_bytes=800, pulls=3, waited_ms=5)


def reported(
    ends: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int] | None,
    group: str | None = None,
) -> Any:
    """Return a source in the form of Spark's report; `latest` None: Spark has none."""
    text = "None" if latest is None else json.dumps(reported_latest(latest, group, CONNECTION))
    end = json.dumps(StreamOffset(until=ends).to_json())
    return SimpleNamespace(endOffset=end, latestOffset=text, numInputRows=9)


def behind(ends: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]) -> list[int]:
    return offsets_behind(SourceProgress(ends, {}, latest, None, 0))


def progress_of(*sources: SourceProgress, tasks: TaskTotals | None = None) -> Any:
    report = SimpleNamespace(
        id="query", runId="run", name=None, timestamp="2025-01-01T00:00:00.000Z", batchId=4
    )
    return stream_progress(report, sources, tasks)


def test_queues_on_one_side_only_are_left_out() -> None:
    assert behind({Q0: 10, Q1: 20}, {Q0: 17, Q2: 500}) == [7]
    assert behind({Q0: 10}, {}) == []
    assert behind({}, {Q0: 10}) == []


def test_end_below_the_streams_offset_counts_as_caught_up() -> None:
    assert behind({Q0: 10, Q1: 5}, {Q0: 3, Q1: 6}) == [0, 1]


def test_progress_is_computed_over_all_sources_of_the_query() -> None:
    one = SourceProgress({Q0: 10, Q1: 10}, {}, {Q0: 10, Q1: 16}, None, rows=5)
    other = SourceProgress({Q2: 1}, {}, {Q2: 10}, None, rows=4)

    progress = progress_of(one, other, tasks=TASKS)

    assert progress.rows == 9
    assert progress.metrics == {
        "numInputRows": 9,
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 9,
        "avgOffsetsBehindLatest": 5.0,
        "tasks": 2,
        "repeatedTasks": 0,
        "taskRows": 9,
        "pulledBytes": 800,
        "pulls": 3,
        "waitedMs": 5,
    }


def test_unknown_numbers_are_none_and_absent_from_the_metrics() -> None:
    progress = progress_of(SourceProgress({Q0: 10}, {}, {}, None, rows=5))

    assert progress.min_offsets_behind_latest is None
    assert progress.avg_offsets_behind_latest is None
    assert progress.tasks is None
    assert progress.metrics == {"numInputRows": 5}


def test_source_reports_its_group_and_connection_with_the_latest_offset() -> None:
    assert source_progress(reported({Q0: 10}, {Q0: 12}, "reports")) == SourceProgress(
        {Q0: 10}, {}, {Q0: 12}, CommitTarget("reports", CONNECTION), 9
    )
    without = source_progress(reported({Q0: 10}, {Q0: 12}))
    assert without is not None
    assert without.commit is None


def test_queues_that_are_gone_are_neither_behind_nor_committed() -> None:
    source = reported({Q0: 10}, {Q0: 12})
    begins = {("flights", "broker-a"): 7}
    end = StreamOffset({Q0: 10, Q1: 20}, topic_begins=begins, gone={Q1: Absence.QUEUE})
    source.endOffset = json.dumps(end.to_json())

    assert source_progress(source) == SourceProgress({Q0: 10}, begins, {Q0: 12}, None, 9)


def test_ends_of_an_unknown_latest_offset_are_empty() -> None:
    assert source_progress(reported({Q0: 10}, None)) == SourceProgress({Q0: 10}, {}, {}, None, 9)


@pytest.mark.parametrize(
    "commit",
    [
        7,
        {},
        {"group": "g"},
        {"group": 5, "connection": {}},
        {"group": "g", "connection": []},
        {"group": "g", "connection": {"option_of_later": 1}},
        {"group": "g", "connection": {"tls_ca_file": "/ca"}},  # refused without use_tls
    ],
)
def test_group_of_another_form_is_not_committed(commit: object) -> None:
    source = reported({Q0: 10}, {Q0: 12})
    source.latestOffset = json.dumps({**json.loads(source.latestOffset), "commit": commit})

    progress = source_progress(source)

    assert progress is not None
    assert progress.commit is None


@pytest.mark.parametrize(
    "end", ["None", "", "5", "[1]", '{"events":{"0":12}}', '{"version":2}', '{"version":1}']
)
def test_other_sources_are_not_recognized(end: str) -> None:
    source = SimpleNamespace(endOffset=end, latestOffset=end, numInputRows=1)

    assert source_progress(source) is None
