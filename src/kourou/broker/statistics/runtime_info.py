"""Runtime information of a broker, the answer to request 28: Java's keys and formats of values.

Keys of features that Kourou does not have, such as thread pools, have Java's value for "off" or
"idle", because tools expect every key to be present.

The module does no I/O: the caller collects the input in `BrokerFacts`.

Source: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.getRuntimeInfo,
DefaultMessageStore.getRuntimeInfo, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.broker.java_text import bool_text, bytes_text, double_text
from kourou.broker.statistics.store_stats import StoreStats
from kourou.protocol.brokers import UNWRITABLE_KEY

NO_TIME: Final = -1
"""The store time of the oldest message if the log is empty."""

_VERSION_TEXT: Final = "V5_5_0"
"""The RocketMQ release whose protocol is implemented; see `kourou.protocol.codes.VERSION`."""

_CONSTANT: Final = {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "ackThreadPoolQueueCapacity": "100000",
    "ackThreadPoolQueueHeadWaitTimeMills": "0",
    "ackThreadPoolQueueSize": "0",
    "dispatchMaxBuffer": "0",
    "litePullThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueHeadWaitTimeMills": "0",
    "litePullThreadPoolQueueSize": "0",
    "pageCacheLockTimeMills": "0",
    "pullThreadPoolQueueCapacity": "100000",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "20000",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "startAcceptSendRequestTimeStamp": "0",
}


@dataclass(frozen=True, kw_only=True)
class BrokerFacts:
    """State of a broker at one moment.

    Attributes:
        boot_at_ms, now_ms: the broker's start and the current time, epoch ms.
        unwritable_reason: why the store accepts no messages; empty if it does.
        log_path: the directory of the commit log.
        space: bytes of its file system: in total, free, available to unprivileged users.
        log_begin, log_end: physical offsets of the begin and end of the log.
        unsynced_bytes: at the log's end, not synced yet.
        undispatched_bytes: at the log's end, not in the consume queues yet.
        earliest_at_ms: store time of the oldest message; `NO_TIME` if there is none.
        delay_offsets: level -> (delivered, stored), both as queue offsets.
        pending_puts: puts that wait for the disk, and their limit.
        timer: the timer's part of the table.
        pop: that of pops, which Java does not have.
    """

    boot_at_ms: int
    now_ms: int
    unwritable_reason: str
    log_path: str
    space: tuple[int, int, int]
    log_begin: int
    log_end: int
    unsynced_bytes: int
    undispatched_bytes: int
    earliest_at_ms: int
    delay_offsets: Mapping[int, tuple[int, int]]
    pending_puts: tuple[int, int]
    timer: Mapping[str, str]
    pop: Mapping[str, str]


def runtime_info(facts: BrokerFacts, stats: StoreStats) -> dict[str, str]:
    """Return the table that answers request 28."""
    total_bytes, free_bytes, _ = facts.space
    ratio = double_text(disk_ratio(facts.space))
    pending, pending_max = facts.pending_puts
    return {
        **_CONSTANT,
        **_store_info(facts, stats),
        **_day_info(stats),
        "brokerActive": bool_text(not facts.unwritable_reason),
        "brokerVersionDesc": _VERSION_TEXT,
        "commitLogDirCapacity": (
            f"Total : {bytes_text(total_bytes)}, Free : {bytes_text(free_bytes)}."
        ),
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{facts.log_path}": ratio,
        "commitLogMaxOffset": str(facts.log_end),
        "commitLogMinOffset": str(facts.log_begin),
        "consumeQueueDiskRatio": ratio,
        "dispatchBehindBytes": str(facts.undispatched_bytes),
        "earliestMessageTimeStamp": str(facts.earliest_at_ms),
        "remainHowManyDataToFlush": bytes_text(facts.unsynced_bytes),
        "sendThreadPoolQueueCapacity": str(pending_max),
        "sendThreadPoolQueueSize": str(pending),
        **({UNWRITABLE_KEY: facts.unwritable_reason} if facts.unwritable_reason else {}),
        **facts.timer,
        **facts.pop,
        **{
            f"scheduleMessageOffset_{level}": f"{delivered},{stored}"
            for level, (delivered, stored) in facts.delay_offsets.items()
        },
    }


def disk_ratio(space: tuple[int, int, int]) -> float:
    """Return the used part of a file system, 0 to 1, rounded up to hundredths.

    Space reserved for the superuser does not count. Returns -1.0 if the size is 0.

    Source: UtilAll.getDiskPartitionSpaceUsedPercent.
    """
    total_bytes, free_bytes, available_bytes = space
    used = total_bytes - free_bytes
    entire = used + available_bytes
    return -(-used * 100 // entire) / 100 if entire > 0 else -1.0


def _store_info(facts: BrokerFacts, stats: StoreStats) -> dict[str, str]:
    """Return the keys of Java's StoreStatsService."""
    puts = stats.put_messages or 1  # Java reports 1 as well, since it divides by this
    found, missed = stats.rates("found"), stats.rates("missed")
    totals = [(hit or 0.0) + (miss or 0.0) for hit, miss in zip(found, missed, strict=True)]
    return {
        "bootTimestamp": str(facts.boot_at_ms),
        "getFoundTps": _rates_text(found),
        "getMessageEntireTimeMax": str(stats.get_took_max_ms),
        "getMissTps": _rates_text(missed),
        "getTotalTps": _rates_text(totals),
        "getTransferredTps": _rates_text(stats.rates("transferred")),
        "putLatency99": f"{stats.percentile_ms(0.99):.2f}",
        "putLatency999": f"{stats.percentile_ms(0.999):.2f}",
        "putMessageAverageSize": double_text(stats.put_bytes / puts),
        "putMessageDistributeTime": stats.distribution(),
        "putMessageEntireTimeMax": str(stats.took_max_ms()),
        "putMessageFailedTimes": str(stats.put_failures),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageTimesTotal": str(puts),
        "putTps": _rates_text(stats.rates("puts")),
        "runtime": _span_text(facts.now_ms - facts.boot_at_ms),
    }


def _day_info(stats: StoreStats) -> dict[str, str]:
    """Return the keys of puts and gets per day."""
    days = (
        ("YesterdayMorning", stats.morning_before),
        ("TodayMorning", stats.morning),
        ("TodayNow", stats.today),
    )
    return {
        f"msg{way}Total{when}": str(totals[at])
        for when, totals in days
        for at, way in enumerate(("Put", "Get"))
    }


def _rates_text(rates: Sequence[float | None]) -> str:
    """Return the rates separated by blanks; a rate that is not known yet is empty."""
    return " ".join("" if rate is None else double_text(rate) for rate in rates)


def _span_text(span_ms: int) -> str:
    seconds = max(0, span_ms) // 1000
    minutes, hours, days = seconds // 60 % 60, seconds // 3600 % 24, seconds // 86400
    # Java's MessageFormat separates thousands by commas.
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
