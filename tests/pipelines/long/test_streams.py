"""Tests of pipelines as streams: repeated runs equal one batch run; late and wrong rows."""

from __future__ import annotations

import logging
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.errors import JobFailedError, NoRouteError, UsageError
from kourou.model.message import Message
from kourou.pipelines import dead_letters, dedup, streams, throughput, trace
from kourou.pipelines.directories import StreamDirectory
from kourou.pipelines.event_time import EventTime
from kourou.pipelines.selection import Selection, read_message_stream
from kourou.pipelines.streams import LateRows, Streaming, TableRun
from kourou.pipelines.tables import Tables
from kourou.spark.schema import COLUMNS, ddl
from kourou.spark.sessions import register
from tests.pipelines.long.test_trace import body, consumed, delivered, sent

Publish = Callable[[Sequence[Message]], list[str]]
Reject = Callable[[str, str, int], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DAMAGED = b"Pub\x01not a number\x02"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rows(frame: DataFrame) -> set[tuple[Any, ...]]:
    return {tuple(map(str, row)) for row in frame.collect()}


def test_windows_of_several_runs_are_those_of_one_batch_run(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    selection = Selection(name_server=namesrv, topics=("t-live",))
    options = throughput.Options(selection=selection, window_ms=100, lateness_ms=500)
    streaming = Streaming(directory=str(tmp_path / "live"))
    reports = []
    for count in (30, 20, 1):  # the last one closes the windows of those before
        publish([Message("t-live", b"x" * (n + 1)) for n in range(count)])
        reports.append(throughput.stream(spark, options, streaming))

    report = reports[-1]
    assert (
        sum(one.stream["read"] for one in reports),
        report.stream["late"],
        report.stream["open"],
    ) == (51, 0, 1)
    throughput.run(spark, options, Tables(str(tmp_path / "batch")))
    expected = spark.read.parquet(f"{tmp_path}/batch/windows")
    last = expected.agg(F.max("windowStart")).collect()[0][0]
    assert rows(spark.read.parquet(f"{tmp_path}/live/windows")) == rows(
        expected.where(F.col("windowStart") < last)
    )
    assert report.metrics["messages"] == 50
    assert report.notes[-1].startswith("windows still open: 1;")

    other = throughput.Options(selection=selection, window_ms=50, lateness_ms=500)
    with pytest.raises(UsageError, match="--window is 50 ms, but"):
        throughput.stream(spark, other, streaming)
    with pytest.raises(UsageError, match="table of a stream"):
        throughput.run(spark, options, Tables(str(tmp_path / "live"), overwrite=True))


def test_late_messages_are_counted_one_by_one(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    """Bodies are store times in seconds: a real broker stores no message in the past."""
    limits = {"maxOffsetsPerTrigger": "100", "startingOffsets": "earliest"}
    selection = Selection(name_server=namesrv, topics=("t-late",), options=limits)
    options = throughput.Options(selection=selection, window_ms=10_000, lateness_ms=1_000)

    def at_body(messages: DataFrame) -> DataFrame:
        at = F.timestamp_seconds(F.col("body").cast("string").cast("int"))
        return messages.withColumns({"storeTimestamp": at, "bornTimestamp": at})

    def late(batch: DataFrame, watermark_ms: int) -> int:
        return throughput.late_messages(at_body(batch), options, watermark_ms)

    counts: dict[int, int | float] = {}
    written = None
    for batch in ((1, 2, 1_000), (5, 6, 7, 25, 999, 2_000), ()):
        if batch:
            publish([Message("t-late", b"%d" % at_s) for at_s in batch])
        run = TableRun(
            spark,
            Streaming(directory=str(tmp_path)),
            StreamDirectory(str(tmp_path), {}, ("windows",)),
        )
        with run:
            messages = read_message_stream(spark, selection, throughput.COLUMNS)
            counted = LateRows(selection=selection, columns=throughput.COLUMNS, count=late)
            run.append("windows", throughput.windows(at_body(messages), options), counted)
            counts[len(batch)] = run.wait()["late"]
            written = run.table("windows")

    assert counts == {3: 0, 6: 4, 0: 0}  # Spark itself counts the windows: 0 and 20
    assert written is not None
    found = {(row.windowStart.timestamp(), row.messages) for row in written.collect()}
    assert found == {(0, 2), (990, 1), (1_000, 1)}


def source_rows(spark: SparkSession, path: Path, values: Sequence[dict[str, Any]]) -> None:
    """Add a file of messages that a stream of files reads."""
    full = [tuple(one.get(name) for name in COLUMNS) for one in values]
    spark.createDataFrame(full, ddl()).coalesce(1).write.mode("append").parquet(str(path))


def message(offset: int, at_s: float, key: str | None = None, ahead_s: float = 0) -> dict[str, Any]:
    return {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": offset,
        "keys": [] if key is None else [key],
        "body": b"x",
        "storeTimestamp": NOON + timedelta(seconds=at_s),
        "bornTimestamp": NOON + timedelta(seconds=at_s + ahead_s),
    }


def run_on_files(
    spark: SparkSession, path: Path, out: Path, query: Callable[[DataFrame], DataFrame]
) -> tuple[dict[str, int | float], int, DataFrame]:
    """Run a query on the files once; return the metrics, the duplicates and the table."""
    frame = query(spark.readStream.schema(ddl()).parquet(str(path)))
    run = TableRun(spark, Streaming(directory=str(out)), StreamDirectory(str(out), {}, ("table",)))
    with run:
        run.append("table", frame)
        return run.wait(), run.duplicates(), run.table("table")


def test_by_the_producers_clock_wrong_clocks_are_set_aside_and_do_not_move_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = throughput.Options(
        selection=Selection(name_server="", topics=("orders",)),
        clock=EventTime.BORN,
        lateness_ms=60_000,
    )
    first = [message(0, 0), message(1, 1, ahead_s=86_400), message(2, 2, ahead_s=-61)]
    second = [message(3, 3), message(4, 86_400)]
    runs = []
    for batch in (first, second):
        source_rows(spark, tmp_path / "in", batch)
        runs.append(
            run_on_files(
                spark,
                tmp_path / "in",
                tmp_path / "out",
                lambda frame: throughput.windows(frame, options),
            )
        )

    counts, _, table = runs[-1]
    assert counts["late"] == 0
    aside = table.where("windowStart IS NULL").collect()
    assert [(row.messages, row.ahead, row.late) for row in aside] == [(2, 1, 1)]
    placed = table.where("windowStart IS NOT NULL").collect()
    assert [(row.windowStart.astimezone(UTC), row.messages) for row in placed] == [(NOON, 2)]


def test_first_arrivals_count_duplicates_wrong_clocks_and_late_messages(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = dedup.Options(
        selection=Selection(name_server="", topics=("orders",)),
        key="key",
        within_ms=10_000,
        clock=EventTime.BORN,
    )
    runs = []
    for batch in (
        [message(0, 0, "a"), message(1, 1, "a"), message(2, 2), message(3, 3)],
        [message(4, 4, "a"), message(5, 5, "b", ahead_s=601), message(6, 100, "c")],
        [message(7, 50, "d"), message(8, 101, "a")],
    ):
        source_rows(spark, tmp_path / "in", batch)
        runs.append(
            run_on_files(
                spark,
                tmp_path / "in",
                tmp_path / "out",
                lambda frame: dedup.first_arrivals(frame, options),
            )
        )

    found = [(counts["ahead"], counts["late"], duplicates) for counts, duplicates, _ in runs]
    assert found == [(0, 0, 1), (1, 0, 1), (0, 1, 0)]
    table = runs[-1][2]
    assert table.columns == list(COLUMNS)
    kept = sorted(row.queueOffset for row in table.collect())
    assert kept[1:] == [2, 3, 6, 8]
    assert kept[0] in (0, 1)


def test_messages_of_several_runs_are_kept_once(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    selection = Selection(name_server=namesrv, topics=("t-once",))
    options = dedup.Options(selection=selection, key="key", within_ms=3_600_000)
    streaming = Streaming(directory=str(tmp_path / "live"))
    found = []
    for start in (0, 20):
        publish(
            [Message("t-once", b"%d" % n, keys=[f"o-{n % 30}"]) for n in range(start, start + 30)]
        )
        found.append(dedup.stream(spark, options, streaming))

    assert [report.stream["duplicates"] for report in found] == [0, 30]
    assert found[1].metrics == {"messages": 30, "without_key": 0}
    dedup.run(spark, options, Tables(str(tmp_path / "batch")))
    keys = [
        rows(spark.read.parquet(f"{tmp_path}/{name}/messages").select("topic", "keys"))
        for name in ("live", "batch")
    ]
    assert keys[0] == keys[1]

    with pytest.raises(UsageError, match="--within is required"):
        dedup.check(dedup.Options(selection=selection), Streaming(directory=str(tmp_path / "x")))


def test_spans_of_several_runs_are_those_of_one_batch_run(
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace, "LATENESS_MS", 200)  # of a minute, the test would wait
    selection = Selection(name_server=namesrv, topics=("t-spans",))
    options = trace.Options(selection=selection, within_ms=300)
    streaming = Streaming(directory=str(tmp_path / "live"))
    reports = []
    for names in ("AB", "C", "D"):
        for name in names:
            calls = (delivered(name, f"q-{name}", 9), consumed(name, f"q-{name}", 5))
            publish([Message("t-spans", body(sent(name), *calls)), Message("t-spans", DAMAGED)])
        reports.append(trace.stream(spark, options, streaming))

    report = reports[-1]
    assert (report.stream["open"], report.stream["late"]) == (1, 0)
    assert report.metrics["damaged"] == 4
    trace.run(spark, options, Tables(str(tmp_path / "batch")))
    expected = spark.read.parquet(f"{tmp_path}/batch/spans")
    live = spark.read.parquet(f"{tmp_path}/live/spans").select(*expected.columns)
    assert rows(live) == rows(expected.where("msgId != 'D'"))
    assert live.count() == 3


def test_dead_letters_of_several_runs_are_those_of_one_batch_run(
    spark: SparkSession, namesrv: str, publish: Publish, reject: Reject, tmp_path: Path
) -> None:
    options = dead_letters.Options(
        selection=Selection(name_server=namesrv, topics=("%DLQ%t-live-dead",))
    )
    reports = []
    for count in (3, 2):
        publish([Message("t-live-dying", b"%d" % n) for n in range(count)])
        reject("t-live-dying", "t-live-dead", count)
        streaming = Streaming(directory=str(tmp_path / "live"))
        reports.append(dead_letters.stream(spark, options, streaming))

    report = reports[-1]
    expected = dead_letters.run(spark, options, Tables(str(tmp_path / "batch")))
    assert report.metrics == expected.metrics
    assert report.tables == expected.tables
    assert report.stream["late"] == 0


def test_a_stream_that_follows_ends_when_it_is_stopped(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("t-followed", b"x")])
    stop = threading.Event()
    selection = Selection(name_server=namesrv, topics=("t-followed",))

    awaited = 1

    def on_progress(counts: Any) -> None:
        nonlocal awaited
        if counts["read"] < awaited:
            return
        if awaited == 2:
            stop.set()
        else:
            publish([Message("t-followed", b"x")])
        awaited += 1

    streaming = Streaming(
        directory=str(tmp_path), follow=True, every_ms=100, stop=stop, on_progress=on_progress
    )
    options = dead_letters.Options(selection=selection)
    report = dead_letters.stream(spark, options, streaming)

    assert (report.stream["read"], report.metrics["messages"]) == (2, 2)
    assert not spark.streams.active


def test_the_failure_of_one_query_ends_the_others(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("t-failing", b"x")])
    selection = Selection(name_server=namesrv, topics=("t-failing",))
    absent = Selection(name_server=namesrv, topics=("t-absent",))

    def fail(_batch: DataFrame, _number: int) -> None:
        raise ValueError("no disk")

    def run(other: Callable[[TableRun], None]) -> None:
        streaming = Streaming(directory=str(tmp_path), follow=True, every_ms=100, overwrite=True)
        directory = StreamDirectory(str(tmp_path), {}, ("letters", "other"))
        with TableRun(spark, streaming, directory) as queries:
            queries.append("letters", read_message_stream(spark, selection))
            other(queries)
            queries.wait()

    with pytest.raises(NoRouteError, match="t-absent"):
        run(lambda queries: queries.append("other", read_message_stream(spark, absent)))
    assert not spark.streams.active
    with pytest.raises(JobFailedError, match="no disk"):
        run(
            lambda queries: queries.each_batch("other", read_message_stream(spark, selection), fail)
        )
    assert not spark.streams.active


class Planners:
    """The Python processes that plan streams, of which some start after the 10 s of Spark.

    Args:
        directory: receives the program that Spark starts instead of Python.
    """

    def __init__(self, directory: Path) -> None:
        self.program = directory / "python"
        self._starts = directory / "starts"
        self._slow = directory / "slow"
        python, starts, slow = map(
            shlex.quote, map(str, (sys.executable, self._starts, self._slow))
        )
        self.program.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *python_streaming_source_runner*) echo >> {starts}\n'
            f"  if [ $(wc -l < {starts}) -le $(cat {slow}) ]; then sleep 11; fi;;\n"
            f'esac\nexec {python} "$@"\n'
        )
        self.program.chmod(0o755)
        self.delay(0)

    def delay(self, count: int) -> None:
        """Let the next processes start too late, and count from now on."""
        self._starts.write_text("")
        self._slow.write_text(str(count))

    @property
    def starts(self) -> int:
        return len(self._starts.read_text().splitlines())


@pytest.fixture
def planners(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Planners]:
    found = Planners(tmp_path_factory.mktemp("planners"))
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", str(found.program))
        register(spark)
        yield found
    register(spark)


def test_query_whose_planner_was_slow_to_start_is_started_again_and_reads_each_message_once(
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    planners: Planners,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = dead_letters.Options(selection=Selection(name_server=namesrv, topics=("t-slow",)))
    read, ids = [], []
    for slow in (0, 1):  # the second run continues a checkpoint
        ids += publish([Message("t-slow", b"%d" % n) for n in range(5)])
        planners.delay(slow)
        with caplog.at_level(logging.WARNING, "kourou"):
            report = dead_letters.stream(spark, options, Streaming(directory=str(tmp_path)))
        read.append((report.stream["read"], planners.starts))

    assert read == [(5, 1), (5, 2)]
    table = spark.read.parquet(str(tmp_path / "letters"))
    assert sorted(row.msgId for row in table.collect()) == sorted(ids)
    warned = [text for text in caplog.messages if text.startswith("stream.started_again")]
    assert len(warned) == 1


def test_starts_of_a_query_are_bounded(
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    planners: Planners,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish([Message("t-never", b"x")])
    monkeypatch.setattr(streams, "STARTS_MAX", 2)  # each takes 10 s
    planners.delay(9)
    options = dead_letters.Options(selection=Selection(name_server=namesrv, topics=("t-never",)))

    with pytest.raises(JobFailedError, match="Python worker failed to connect back"):
        dead_letters.stream(spark, options, Streaming(directory=str(tmp_path)))

    assert planners.starts == 2
    assert not spark.streams.active


def test_query_that_failed_otherwise_is_not_started_again(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path, planners: Planners
) -> None:
    publish([Message("t-broken", b"x")])
    selection = Selection(name_server=namesrv, topics=("t-broken",))

    def fail(_batch: DataFrame, _number: int) -> None:
        raise ValueError("no disk")

    directory = StreamDirectory(str(tmp_path), {}, ("letters",))
    with TableRun(spark, Streaming(directory=str(tmp_path)), directory) as queries:
        queries.each_batch("letters", read_message_stream(spark, selection), fail)
        with pytest.raises(JobFailedError, match="no disk"):
            queries.wait()

    assert planners.starts == 1
