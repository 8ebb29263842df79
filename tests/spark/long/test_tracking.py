"""Tests of tracked streams by Spark, with a real broker: progress, commits and counts of tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import kourou.spark
from kourou.client.administration.admin import AdminClient
from kourou.errors import ConfigError, UsageError
from kourou.model.message import Message
from kourou.spark.report_channel import RECEIVER_SETTING
from kourou.spark.stream_progress import StreamProgress
from kourou.spark.tracking import Tracker

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Observed:
    """Callback that holds the progress of all batches."""

    def __init__(self) -> None:
        self.all: list[StreamProgress] = []
        self._changed = threading.Condition()

    def __call__(self, progress: StreamProgress) -> None:
        with self._changed:
            self.all.append(progress)
            self._changed.notify_all()

    def wait(self, batches: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= batches, timeout=300)


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def tracker(spark: SparkSession, observed: Observed) -> Iterator[Tracker]:
    with kourou.spark.track(spark, on_progress=observed) as tracker:
        yield tracker


def load(spark: SparkSession, namesrv: str, topic: str, **options: str) -> DataFrame:
    options = {"startingOffsets": "earliest", "commitGroup": f"{topic}-progress", **options}
    source = spark.readStream.format("rocketmq").option("nameServer", namesrv)
    return source.option("topic", topic).options(**options).load()


def start(rows: DataFrame, directory: Path, name: str, **trigger: Any) -> Any:
    writer = rows.writeStream.format("noop").queryName(name)
    return writer.option("checkpointLocation", str(directory / name)).trigger(**trigger).start()


def messages(topic: str, count: int) -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(count)]


def lag(namesrv: str, group: str) -> int:
    async def ask() -> int:
        async with AdminClient(namesrv) as admin:
            return (await admin.describe_group(group)).lag

    return asyncio.run(ask())


def test_batches_have_progress_and_the_counts_of_their_tasks(
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    tracker: Tracker,
    observed: Observed,
) -> None:
    publish(messages("watched", 100))
    rows = load(spark, namesrv, "watched", maxOffsetsPerTrigger="40")

    query = start(rows, tmp_path, "watching", availableNow=True)
    query.awaitTermination()

    last = tracker.latest(query)
    assert last is not None
    assert tracker.latest("watching") == tracker.latest(str(query.id)) == last
    assert tracker.latest("absent") is None
    assert [progress.batch_id for progress in observed.all] == [0, 1, 2]
    assert [progress.rows for progress in observed.all] == [40, 40, 20]
    assert [progress.tasks and progress.tasks.rows for progress in observed.all] == [40, 40, 20]
    assert [progress.max_offsets_behind_latest for progress in observed.all] == [30, 10, 0]
    assert last == observed.all[-1]
    assert last.tasks is not None
    assert last.tasks.pulled_bytes > 20 * 80
    assert last.tasks.pulls >= 2, "one for each queue"
    assert last.tasks.repeated_tasks == 0
    tracker.stop()
    assert lag(namesrv, "watched-progress") == 0


def test_last_batch_is_committed_before_another_one_is_planned(
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    tracker: Tracker,
    observed: Observed,
) -> None:
    publish(messages("hourly", 30))
    query = start(load(spark, namesrv, "hourly"), tmp_path, "hourly", processingTime="1 hour")
    try:
        observed.wait(1)
        tracker.stop()
        assert lag(namesrv, "hourly-progress") == 0
        assert query.isActive
    finally:
        query.stop()


def test_query_that_was_started_before_has_progress_without_counts(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path, observed: Observed
) -> None:
    publish(messages("early", 10))
    rows = load(spark, namesrv, "early")
    query = start(rows, tmp_path, "early", processingTime="0 seconds")
    try:
        query.processAllAvailable()
        with kourou.spark.track(spark, on_progress=observed) as tracker:
            publish(messages("early", 6))
            query.processAllAvailable()
            observed.wait(1)
            while sum(progress.rows for progress in observed.all) < 6:
                observed.wait(len(observed.all) + 1)
            query.stop()
            last = tracker.latest("early")
    finally:
        query.stop()

    assert last == observed.all[-1]
    assert last is not None
    assert last.tasks is None
    assert last.min_offsets_behind_latest == 0
    assert lag(namesrv, "early-progress") == 0


def test_tracker_that_stops_in_mid_batch_and_a_callback_that_fails_harm_nothing(
    spark: SparkSession, namesrv: str, publish: Publish, observed: Observed
) -> None:
    publish(messages("untracked", 90))
    rows = load(spark, namesrv, "untracked", maxOffsetsPerTrigger="30")
    counts: list[int] = []

    def observe_and_fail(progress: StreamProgress) -> None:
        assert running.latest(progress.query_id) == progress, "also inside of a callback"
        observed(progress)
        raise ValueError(progress.batch_id)

    running = kourou.spark.track(spark, on_progress=observe_and_fail)

    def take(batch: DataFrame, number: int) -> None:
        if number == 1:
            observed.wait(1)
            running.stop()
        counts.append(batch.count())

    query = rows.writeStream.foreachBatch(take).trigger(availableNow=True).start()
    query.awaitTermination()

    assert counts == [30, 30, 30]
    first = running.latest(query)
    assert first is not None
    assert first.batch_id == 0
    assert first.tasks is not None
    assert first.tasks.rows == 30


def test_second_call_returns_the_running_tracker(spark: SparkSession, observed: Observed) -> None:
    with kourou.spark.track(spark) as tracker:
        assert kourou.spark.track(spark, on_progress=observed) is tracker
        assert tracker.port is not None
        assert kourou.spark.track(spark, port=tracker.port) is tracker
        with pytest.raises(UsageError, match=r"port is 1, but .* tracked on port \d+ .* stop\(\)"):
            kourou.spark.track(spark, port=1)
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{tracker.port}.* use another port"):
            kourou.spark.track(spark.newSession(), port=tracker.port)

    tracker.stop()
    assert spark.conf.get(RECEIVER_SETTING, None) is None
    with kourou.spark.track(spark) as again:
        assert again is not tracker
    assert "kourou-spark-tracker" not in {thread.name for thread in threading.enumerate()}


def test_other_objects_than_sessions_are_refused() -> None:
    with pytest.raises(UsageError, match=r"track\(\) has 'spark', and needs a SparkSession"):
        kourou.spark.track("spark")
