"""What a broker tells of itself with request 28: Java's keys, each value a text as Java writes it.

Keys of what Kourou has not, such as thread pools of their own, have Java's value for
"off" or "idle", because tools read them without asking whether they are there.

Pure: `BrokerFacts` is what the caller found out.

Source: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.getRuntimeInfo,
DefaultMessageStore.getRuntimeInfo, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.broker.java_text import bool_text, bytes_text, double_text
from kourou.broker.statistics.store_stats import StoreStats

NO_TIME: Final = -1
"""The store time of the oldest message where there is none."""

_VERSION_TEXT: Final = "V5_5_0"
"""The release whose protocol we speak; see `VERSION` in `kourou.protocol.codes`."""

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
    """How a broker is at one moment.

    Attributes:
        boot_at_ms, now_ms: epoch ms.
        is_active: it takes messages.
        log_path: the directory of the commit log.
        space: bytes of its file system: in all, free, free for everybody.
        log_begin, log_end: bytes of the log that are there.
        unsynced_bytes: at its end, not durable yet.
        undispatched_bytes: at its end, not in the queues yet.
        earliest_at_ms: when its oldest message was stored; `NO_TIME` where there is none.
        delay_offsets: level -> (messages delivered, messages that came), in queue offsets.
        pending_puts: puts that wait for the disk, and how many may.
        timer: the timer's part of the table.
    """

    boot_at_ms: int
    now_ms: int
    is_active: bool
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


def runtime_info(facts: BrokerFacts, stats: StoreStats) -> dict[str, str]:
    """Return the table that answers request 28."""
    total_bytes, free_bytes, _ = facts.space
    ratio = double_text(disk_ratio(facts.space))
    pending, pending_max = facts.pending_puts
    return {
        **_CONSTANT,
        **_store_info(facts, stats),
        **_day_info(stats),
        "brokerActive": bool_text(facts.is_active),
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
        **facts.timer,
        **{
            f"scheduleMessageOffset_{level}": f"{delivered},{came}"
            for level, (delivered, came) in facts.delay_offsets.items()
        },
    }


def disk_ratio(space: tuple[int, int, int]) -> float:
    """Return how full a file system is for its users, in hundredths, rounded up.

    Source: UtilAll.getDiskPartitionSpaceUsedPercent; -1.0 for one without a size.
    """
    total_bytes, free_bytes, available_bytes = space
    used = total_bytes - free_bytes
    entire = used + available_bytes
    return -(-used * 100 // entire) / 100 if entire > 0 else -1.0


def _store_info(facts: BrokerFacts, stats: StoreStats) -> dict[str, str]:
    """Return what Java's store counts."""
    puts = stats.put_messages or 1  # so does Java, to divide by it
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
    """Return puts and gets by the day."""
    told = (
        ("YesterdayMorning", stats.morning_before),
        ("TodayMorning", stats.morning),
        ("TodayNow", stats.today),
    )
    return {
        f"msg{way}Total{when}": str(totals[at])
        for when, totals in told
        for at, way in enumerate(("Put", "Get"))
    }


def _rates_text(rates: Sequence[float | None]) -> str:
    """Return the rates with blanks between; one that is not known yet is empty."""
    return " ".join("" if rate is None else double_text(rate) for rate in rates)


def _span_text(span_ms: int) -> str:
    seconds = max(0, span_ms) // 1000
    minutes, hours, days = seconds // 60 % 60, seconds // 3600 % 24, seconds // 86400
    # MessageFormat puts commas between thousands.
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
