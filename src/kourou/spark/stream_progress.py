"""Progress of a streaming query that reads topics, computed from Spark's own report. Pure.

Spark reports of each source of a batch the end that was read and the latest offset. The data source
gives the latest offset this form, with a member `commit` if the option commitGroup is set:

    {"version": 1, "from": {}, "until": {"flights": {"broker-a": {"0": 99, "1": 98}}},
     "commit": {"group": "reports", "connection": {"name_server": "localhost:9876"}}}

The name of the source is not in the report. It is recognized by the form of its offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

from kourou.errors import KourouError
from kourou.model.queue import MessageQueue
from kourou.spark.connection import ConnectionOptions
from kourou.spark.planning import BrokerTopic
from kourou.spark.stream_offsets import Json, StreamOffset
from kourou.spark.task_reports import TaskTotals

_CONNECTION_FIELDS: Final = frozenset(field.name for field in fields(ConnectionOptions))


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """Group in which the progress of a stream is published, and the connection to its brokers."""

    group: str
    connection: ConnectionOptions


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The queues of one source at the end of a batch.

    Attributes:
        ends: offset after the last message read, by queue; without queues that are gone.
        topic_begins: identities of the topics; see `StreamOffset`.
        latest: end of each queue when the batch was planned; without queues whose broker did not
            answer.
        commit: None without the option commitGroup.
        rows: number of rows read, as Spark counts them.
    """

    ends: Mapping[MessageQueue, int]
    topic_begins: Mapping[BrokerTopic, int]
    latest: Mapping[MessageQueue, int]
    commit: CommitTarget | None
    rows: int


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Progress of a streaming query at the end of a batch, over all its topics.

    Attributes:
        query_id: the same after each restart from the checkpoint.
        run_id: differs after a restart.
        name: as given to `queryName`; None without one.
        batch_id: number of the batch.
        timestamp: start of the batch, as ISO 8601 in UTC.
        rows: number of rows that the batch read, as Spark counts them.
        min_offsets_behind_latest: smallest number of messages that a queue had after those read,
            when the batch was planned; None if no end is known.
        max_offsets_behind_latest: largest number of such messages of a queue.
        avg_offsets_behind_latest: mean number of such messages of a queue.
        tasks: totals of the tasks that read the batch; None if none reported. Their rows are fewer
            than `rows` if reports were lost.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    timestamp: str
    rows: int
    min_offsets_behind_latest: int | None
    max_offsets_behind_latest: int | None
    avg_offsets_behind_latest: float | None
    tasks: TaskTotals | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The known numbers under the names that Spark's Kafka source uses, and its style."""
        metrics: dict[str, float | None] = {
            "numInputRows": self.rows,
            "minOffsetsBehindLatest": self.min_offsets_behind_latest,
            "maxOffsetsBehindLatest": self.max_offsets_behind_latest,
            "avgOffsetsBehindLatest": self.avg_offsets_behind_latest,
        }
        if self.tasks is not None:
            metrics |= {
                "tasks": self.tasks.tasks,
                "repeatedTasks": self.tasks.repeated_tasks,
                "taskRows": self.tasks.rows,
                "pulledBytes": self.tasks.pulled_bytes,
                "pulls": self.tasks.pulls,
                "waitedMs": self.tasks.waited_ms,
            }
        return {name: value for name, value in metrics.items() if value is not None}


class _SparkSource(Protocol):
    """Spark's report of one source; its offsets are JSON."""

    endOffset: str  # noqa: N815 - Spark's name
    latestOffset: str  # noqa: N815
    numInputRows: int  # noqa: N815


class _SparkProgress(Protocol):
    """Spark's report of one batch."""

    id: object
    runId: object  # noqa: N815 - Spark's name
    name: str | None
    timestamp: str
    batchId: int  # noqa: N815
    sources: Sequence[Any]


def reported_latest(
    ends: Mapping[MessageQueue, int], group: str | None, connection: ConnectionOptions
) -> Json:
    """Return the latest offset that a source reports to Spark."""
    latest = StreamOffset(until=ends).to_json()
    if group is not None:
        given = {name: value for name, value in asdict(connection).items() if value}
        latest["commit"] = {"group": group, "connection": given}
    return latest


def source_progress(source: _SparkSource) -> SourceProgress | None:
    """Return the progress of a source; None if it is not `rocketmq`."""
    try:
        end = StreamOffset.from_json(json.loads(source.endOffset))
    except (ValueError, TypeError, KourouError):
        return None
    try:
        latest = json.loads(source.latestOffset)
        commit = _target(latest.pop("commit", None))
        latest_ends = StreamOffset.from_json(latest).until
    except (ValueError, TypeError, AttributeError, KourouError):
        commit, latest_ends = None, {}  # not planned yet in this run, or of another version
    read = {queue: offset for queue, offset in end.until.items() if queue not in end.gone}
    return SourceProgress(read, end.topic_begins, latest_ends, commit, source.numInputRows)


def _target(value: object) -> CommitTarget | None:
    """Return the group of a reported latest offset; None if it has none, or of another version."""
    if not isinstance(value, dict) or not isinstance(value.get("connection"), dict):
        return None
    group, connection = value.get("group"), value["connection"]
    if not isinstance(group, str) or not connection.keys() <= _CONNECTION_FIELDS:
        return None
    return CommitTarget(group, ConnectionOptions(**connection))


def offsets_behind(source: SourceProgress) -> list[int]:
    """Return how far the stream is behind the end of each queue.

    A queue that only one side has is left out: its broker did not answer, or it was created after
    the batch was planned. An end below the stream's offset, after a loss, counts as 0.
    """
    return [
        max(0, source.latest[queue] - end)
        for queue, end in source.ends.items()
        if queue in source.latest
    ]


def stream_progress(
    progress: _SparkProgress, sources: Iterable[SourceProgress], tasks: TaskTotals | None
) -> StreamProgress:
    """Return the progress of a query over those of its sources that read topics."""
    held = list(sources)
    behind = [count for source in held for count in offsets_behind(source)]
    return StreamProgress(
        query_id=str(progress.id),
        run_id=str(progress.runId),
        name=progress.name,
        batch_id=progress.batchId,
        timestamp=progress.timestamp,
        rows=sum(source.rows for source in held),
        min_offsets_behind_latest=min(behind, default=None),
        max_offsets_behind_latest=max(behind, default=None),
        avg_offsets_behind_latest=sum(behind) / len(behind) if behind else None,
        tasks=tasks,
    )
