"""Pipeline `lag`: progress of consumer groups against the ends of their queues, with a forecast.

Brokers do not store the history of lags, so the pipeline samples them (GET_CONSUME_STATS) at an
interval and appends each sample to a table of its own. The forecast is a straight line through the
samples: a group catches up if it consumes faster than producers send, and it falls out of retention
if the age of its next message grows up to the brokers' retention time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.clock import Clock, SystemClock, elapsed_s
from kourou.errors import GroupNotFoundError, RemoteError, TransportError
from kourou.model.route import MASTER_ID
from kourou.model.topic import check_group, is_system_group
from kourou.pipelines.charts import Lines
from kourou.pipelines.report import Report, epoch_ms, first_rows
from kourou.pipelines.tables import AppendedTable, Tables
from kourou.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_SAMPLE: Final = pa.schema(
    [
        ("at", _INSTANT),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("brokerOffset", pa.int64()),
        ("consumerOffset", pa.int64()),
        ("consumedStoredAt", _INSTANT),
        ("retentionMs", pa.int64()),
    ]
)
RETENTION_KEY: Final = "fileReservedTime"
"""The broker's setting of its retention time, in hours."""
_PLOTTED_MAX: Final = 20_000
_GAP_SAMPLES: Final = 10
"""Number of missing samples from which on the line of a chart is interrupted."""
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        name_server: `host:port` of the name servers, separated by ';'.
        groups: the consumer groups; empty: all but system groups.
        every_ms: interval of the samples.
        duration_ms: duration of the sampling; it takes one sample at least.
        over_ms: the forecast uses samples of this time before the last one, also of earlier runs.
        retention_ms: retention time; None: as each broker is configured.
        config: options of the client that samples.
        rows: maximum number of printed rows.
    """

    name_server: str
    groups: tuple[str, ...] = ()
    every_ms: int = 5_000
    duration_ms: int = 30_000
    over_ms: int = 3_600_000
    retention_ms: int | None = None
    config: AdminConfig = field(default_factory=AdminConfig)
    rows: int = 20


async def sample(options: Options, clock: Clock) -> pa.Table:
    """Return one sample: a row for each group and queue.

    Raises:
        GroupNotFoundError: no broker has one of the named groups.
        KourouError: no server answered, or one refused.
    """
    async with AdminClient(options.name_server, config=options.config) as admin:
        found = await admin.describe_groups(options.groups or None)
        missing = set(options.groups) - {one.group for one in found}
        if missing:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"no broker has the group {min(missing)}",
            )
        retention = await _retentions(admin, options.retention_ms)
    at_us = clock.now_ms() * 1000
    rows = [
        {
            "at": at_us,
            "group": one.group,
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offset.broker_offset,
            "consumerOffset": offset.consumer_offset,
            "consumedStoredAt": offset.last_timestamp * 1000 or None,
            "retentionMs": retention(queue.broker_name),
        }
        for one in found
        if options.groups or not is_system_group(one.group)
        for queue, offset in one.offsets.items()
    ]
    return pa.Table.from_pylist(rows, schema=_SAMPLE)


def samples(options: Options, clock: Clock, pause: threading.Event) -> Iterator[pa.Table | None]:
    """Yield a sample at each interval; None for one that no server answered.

    Args:
        options: groups and interval.
        clock: gives the time of each sample.
        pause: ends the sampling when it is set.

    Raises:
        KourouError: the first sample failed, or a server refused.
    """
    begun_s = elapsed_s()
    count = max(1, options.duration_ms // options.every_ms + 1)
    for number in range(count):
        wait_s = begun_s + number * options.every_ms / 1000 - elapsed_s()
        if number and pause.wait(max(0.0, wait_s)):
            return
        try:
            yield asyncio.run(sample(options, clock))
        except TransportError as error:
            if number == 0:
                raise
            log.warning("lag_sample.failed error=%s", error)
            yield None
        except KeyboardInterrupt:
            # Ctrl-C ends the sampling, and the forecast uses the samples so far.
            if number == 0:
                raise
            return


def progress(sampled: DataFrame) -> DataFrame:
    """Return the lag of each group in each topic at each sample.

    `delayMs` is the age of the oldest message that waits, up to one message too old: brokers give
    the store time of the last consumed message.

    Args:
        sampled: the samples.
    """
    lag = F.greatest(F.lit(0), F.col("brokerOffset") - F.col("consumerOffset"))
    delay_ms = F.unix_millis("at") - F.unix_millis("consumedStoredAt")
    return sampled.groupBy("at", "group", "topic").agg(
        F.sum(lag).alias("lag"),
        F.sum("brokerOffset").alias("end"),
        F.sum("consumerOffset").alias("consumed"),
        F.coalesce(F.max(F.when(lag > 0, delay_ms)), F.lit(0)).alias("delayMs"),
        F.min("retentionMs").alias("retentionMs"),
    )


def forecast(measured: DataFrame, over_ms: int) -> DataFrame:
    """Return the forecast of each group and topic.

    `state` is `caught up`, `catches up`, `falls out of retention`, `falls behind`, `idle`
    (it consumes nothing, and nothing is sent) or `unknown` (fewer than two samples).

    Args:
        measured: the lags over time.
        over_ms: only samples of this time before the last one.
    """
    latest = measured.agg(F.max("at").alias("latest"))
    recent = measured.crossJoin(F.broadcast(latest)).where(
        F.unix_millis("at") >= F.unix_millis("latest") - over_ms
    )
    at_s = F.unix_millis("at") / 1000

    def slope(value: str) -> Column:
        return F.round(F.regr_slope(value, at_s), 6)

    rates = recent.groupBy("group", "topic").agg(
        F.count(F.lit(1)).alias("samples"),
        F.max("at").alias("at"),
        *(F.max_by(name, "at").alias(name) for name in ("lag", "delayMs", "retentionMs")),
        slope("end").alias("inPerSecond"),
        slope("consumed").alias("outPerSecond"),
        (slope("delayMs") / 1000).alias("delayGrowth"),
    )
    gain = F.col("outPerSecond") - F.col("inPerSecond")
    room_s = (F.col("retentionMs") - F.col("delayMs")) / 1000
    catch_up_s = F.when((F.col("lag") > 0) & (gain > 0), F.round(F.col("lag") / gain, 1))
    expire_s = F.when(
        (F.col("lag") > 0) & (F.col("delayGrowth") > 0) & room_s.isNotNull(),
        F.round(F.greatest(F.lit(0.0), room_s / F.col("delayGrowth")), 1),
    )
    with_times = rates.withColumns({"catchUpS": catch_up_s, "expireS": expire_s})
    is_expiring = F.col("expireS") < F.coalesce("catchUpS", F.lit(float("inf")))
    state = (
        F.when(F.col("lag") == 0, "caught up")
        .when(F.col("samples") < 2, "unknown")
        .when(is_expiring, "falls out of retention")
        .when(F.col("catchUpS").isNotNull(), "catches up")
        .when(F.col("inPerSecond") > F.col("outPerSecond"), "falls behind")
        .otherwise("idle")
    )
    return with_times.withColumn("state", state)


def tables(
    spark: SparkSession, options: Options, output: Tables, store: AppendedTable | None = None
) -> tuple[DataFrame, DataFrame]:
    """Build the table `forecast` from `samples`; also returns the lags over time."""
    sampled = (store or output.appended("samples", spark)).frame(_SAMPLE)
    measured = output.cache(progress(sampled))
    return measured, output.add("forecast", forecast(measured, options.over_ms), replace=True)


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Sample for a time, then forecast; return the groups that are in most danger first."""
    for group in options.groups:
        check_group(group)
    taken = failed = 0
    with output or Tables() as kept:
        store = kept.appended("samples", spark)
        for one in samples(options, SystemClock(), threading.Event()):
            if one is None:
                failed += 1
            else:
                taken += 1
                store.append(one)
        measured, found = tables(spark, options, kept, store)
        shown = first_rows(
            "forecast",
            found,
            (
                *("group", "topic", "lag", "delayMs", "inPerSecond", "outPerSecond"),
                *("catchUpS", "expireS", "state"),
            ),
            (F.asc_nulls_last("expireS"), F.desc("lag"), "group", "topic"),
            options.rows,
        )
        history = measured.orderBy("at").limit(_PLOTTED_MAX).collect()
        expiring = found.where(F.col("state") == "falls out of retention").count()
    return Report(
        tables=(shown,),
        metrics={"samples": taken, "failed_samples": failed, "expiring": expiring},
        notes=[f"{failed} samples failed: no server answered"] if failed else [],
        charts=(_chart(history, options.every_ms),),
    )


async def _retentions(admin: AdminClient, fixed_ms: int | None) -> Callable[[str], int | None]:
    """Return a function from broker name to retention time in ms, None if unknown."""
    if fixed_ms is not None:
        return lambda _: fixed_ms
    found: dict[str, int] = {}
    for name, data in (await admin.cluster_info()).brokers.items():
        try:
            settings = await admin.broker_config(data.broker_addrs[MASTER_ID])
            found[name] = int(settings[RETENTION_KEY]) * _HOUR_MS
        except (KeyError, ValueError, RemoteError):
            # The user may not read settings; the forecast then lacks the time of expiry.
            log.debug("broker_retention.missed broker=%s", name)
    return found.get


def _chart(rows: Sequence[Any], every_ms: int) -> Lines:
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        series.setdefault(f"{row.group} {row.topic}", []).append((epoch_ms(row.at), row.lag))
    # Between earlier runs, and while no server answered, the lag is not known.
    return Lines(title="Lag", unit="messages", series=series, gap_ms=_GAP_SAMPLES * every_ms)
