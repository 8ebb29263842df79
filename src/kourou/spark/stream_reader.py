"""Streaming reads: each batch is planned as fixed ranges, which Spark logs before it reads them.

Spark runs the planning methods in one process for the whole query, and `read` in its workers. The
queue offsets at the ends of batches are only in the query's checkpoint, never in the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kourou.clock import elapsed_s
from kourou.errors import ConfigError, DataLossError, RemoteError, TransportError
from kourou.model.queue import MessageQueue
from kourou.spark.cluster import ClusterClient, started_client
from kourou.spark.limits import Sample, TriggerLimits
from kourou.spark.range_reader import read_ranges, tasks_of
from kourou.spark.read_options import ReadOptions
from kourou.spark.report_channel import reported
from kourou.spark.stream_offsets import StreamOffset, ranges_of
from kourou.spark.stream_planning import TriggerState, View, plan_batch
from kourou.spark.stream_progress import reported_latest
from kourou.spark.worker_errors import text_first

_T = TypeVar("_T")
log = logging.getLogger(__name__)

VIEW_TIMEOUT_MS: Final = 2_000
"""How long a running query waits for a broker that does not answer, at each trigger."""

_LISTED_MAX: Final = 3
"""Number of losses or topics in the text of an error; the number of the others follows."""

_NO_LIMIT: Final = 2**31 - 1
"""Passed through Spark as the limit if the limit is not a number of rows."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reader of one streaming query."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._planner: _Planner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return a constant: Spark does not log it, and calls this again after a restart."""
        starting = self._options.starting
        position = starting.for_all_queues
        text = f"{starting.option} {getattr(position, 'value', '')}".strip()
        return StreamOffset.initial(text).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return whether there is a limit; the option says which."""
        limits = self._options.limits
        if limits == TriggerLimits():
            return ReadAllAvailable()
        return ReadMaxRows(limits.max_offsets or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the query to the messages that are there now."""
        self._planning().stop_at_current_ends()

    @text_first
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; `start` if there is nothing to read.

        Raises:
            DataLossError: messages to read were deleted, and failOnDataLoss is true.
            KourouError: no name server answered, or the first batch lacks a broker.
        """
        is_limited = not isinstance(limit, ReadAllAvailable)
        end = self._planning().plan(StreamOffset.from_json(start), is_limited=is_limited)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of all queues as of the last plan, for Spark's progress report."""
        ends, options = self._planning().latest_ends, self._options
        return reported_latest(ends, options.commit_group, options.client) if ends else None

    @text_first
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each task of the batch that ends at `end`.

        Raises:
            CheckpointError: the checkpoint holds other offsets than those of one batch.
        """
        ranges = ranges_of(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return tasks_of(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows as Arrow batches; raises as `read_ranges`."""
        with reported() as counts:
            yield from read_ranges(partition.value, self._options, self._columns, counts)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint has the offsets, and the last batch is never reported."""

    def stop(self) -> None:
        """Close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _planning(self) -> _Planner:
        """Return the planner, which is created in Spark's planning process and never pickled."""
        if self._planner is None:
            self._planner = _Planner(self._options)
        return self._planner


class _Planner:
    """Plans the batches of a query with the current offsets of the brokers.

    Attributes:
        latest_ends: the end of each queue as of the last plan.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._client = self._started_client(options.consumer_group)
        self._committer: ClusterClient | None = None
        if options.commit_group is not None:
            self._committer = self._started_client(options.commit_group)
        self._committed: dict[MessageQueue, int] = {}
        self._state = TriggerState()
        self._target: View | None = None
        self.latest_ends: Mapping[MessageQueue, int] = {}

    def close(self) -> None:
        for client in (self._client, self._committer):
            if client is not None:
                self._run(client.close())
        self._loop.close()

    def stop_at_current_ends(self) -> None:
        """Plan no messages that are stored from now on."""
        self._target = self._run(self._client.view(self._options.source, ()))

    def plan(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        """Return the end of the batch that begins at `start`."""
        options = self._options
        deselected = self._deselected(start)
        if start.is_initial:
            view = self._run(self._client.view(options.source))
        else:
            view = self._run(
                self._client.view(
                    options.source,
                    start.until.keys() - start.gone.keys() - deselected,
                    timeout_ms=min(options.pull_timeout_ms, VIEW_TIMEOUT_MS),
                )
            )
            self._publish(start)
        self.latest_ends = {queue: held.max_offset for queue, held in view.bounds.items()}
        starting = None
        if start.is_initial and not view.silent:
            starting = self._run(self._client.settle(options.starting, view.bounds))
        limits = options.limits if is_limited else TriggerLimits()
        if self._target is not None:
            view = view.capped(self._target)
            limits = replace(limits, min_offsets=None)
        plan = plan_batch(
            start,
            view,
            limits,
            int(elapsed_s() * 1000),
            self._state,
            starting=starting,
            deselected=deselected,
            probe=self,
        )
        if plan.losses and options.fail_on_data_loss:
            raise DataLossError(_listed(plan.losses))
        for loss in plan.losses:
            log.warning("spark_offsets.lost reason=%s", loss)
        for queue, offset in plan.returned.items():
            log.warning("spark_offsets.returned queue=%s offset=%d", queue, offset)
        return plan.end

    def _deselected(self, start: StreamOffset) -> frozenset[MessageQueue]:
        """Return the queues that the checkpoint has and the options do not select any more.

        Raises:
            ConfigError: there are some, and failOnDataLoss is true.
        """
        source = self._options.source
        queues = frozenset(
            queue
            for queue in start.until.keys() - start.gone.keys()
            if not source.selects_queue(queue)
        )
        if not queues:
            return queues
        names = _listed([repr(one) for one in sorted({queue.topic for queue in queues})])
        text = f"{source}, but the checkpoint has {len(queues)} other queues, of {names}"
        if self._options.fail_on_data_loss:
            raise ConfigError(
                f"{text}: select them too, use a new checkpointLocation, or set failOnDataLoss to "
                "false to continue without them"
            )
        log.warning("spark_offsets.deselected reason=%s", text)
        return queues

    def samples(self, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, Sample]:
        """Return a sample of each queue; see `Probe`."""
        return self._run(self._client.samples(offsets))

    def offsets_at(
        self, queues: Sequence[MessageQueue], time_ms: int
    ) -> Mapping[MessageQueue, int]:
        """Return the first offset at a time; see `Probe`."""
        return self._run(self._client.offsets_at(queues, time_ms))

    def _publish(self, start: StreamOffset) -> None:
        """Commit the end of the last batch for `commitGroup`, so that tools show the lag."""
        if self._committer is None:
            return
        changed = {
            queue: offset
            for queue, offset in start.until.items()
            if self._committed.get(queue) != offset and queue not in start.gone
        }
        try:
            self._run(self._committer.commit_offsets(changed, start.topic_begins))
        except (TransportError, RemoteError) as error:
            log.warning(
                "spark_group.not_committed group=%s reason=%s", self._options.commit_group, error
            )
        else:
            self._committed |= changed

    def _started_client(self, group: str) -> ClusterClient:
        return self._run(started_client(self._options.client, group, self._options.pull_timeout_ms))

    def _run(self, call: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(call)


def _listed(items: Sequence[object]) -> str:
    """Return the first items as text, and the number of the others."""
    others = len(items) - _LISTED_MAX
    texts = [*map(str, items[:_LISTED_MAX]), *([f"and {others} more"] if others > 0 else [])]
    return "; ".join(texts)
