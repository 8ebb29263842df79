"""The table that answers request 28."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.statistics.runtime_info import NO_TIME, BrokerFacts, disk_ratio, runtime_info
from kourou.broker.statistics.store_stats import StoreStats

GIB = 1 << 30
FACTS = BrokerFacts(
    boot_at_ms=1_795_228_331_410,
    now_ms=1_795_228_331_410 + 252_300,
    unwritable_reason="",
    log_path="/home/rocketmq/store/commitlog",
    space=(252 * GIB, 233 * GIB, 200 * GIB),
    log_begin=0,
    log_end=112_999,
    unsynced_bytes=289,
    undispatched_bytes=0,
    earliest_at_ms=1_795_228_375_346,
    delay_offsets={1: (3, 3), 18: (0, 1)},
    pending_puts=(7, 100_000),
    pop={},
    timer={
        "timerCongestNum": "0",
        "timerDequeueTps": "0.0",
        "timerEnqueueTps": "0.0",
        "timerOffsetBehind": "0",
        "timerReadBehind": "0",
    },
)


def test_the_keys_are_those_of_the_java_broker(golden: Callable[[str], Any]) -> None:
    _, answer = golden("28_GET_BROKER_RUNTIME_INFO_raw-runtime-info")
    recorded = json.loads(answer.body)["table"]
    ours = runtime_info(FACTS, StoreStats(0))
    levels = {key for key in recorded if key.startswith("scheduleMessageOffset_")}
    assert recorded.keys() - levels == {
        key for key in ours if not key.startswith("scheduleMessageOffset_")
    }


def test_positions_and_times_are_formatted_as_by_java() -> None:
    info = runtime_info(FACTS, StoreStats(0))
    assert info["runtime"] == "[ 0 days, 0 hours, 4 minutes, 12 seconds ]"
    assert info["bootTimestamp"] == "1795228331410"
    assert info["earliestMessageTimeStamp"] == "1795228375346"
    assert info["commitLogDirCapacity"] == "Total : 252.0 GiB, Free : 233.0 GiB."
    assert info["commitLogDiskRatio"] == "0.09"
    assert info["commitLogDiskRatio_/home/rocketmq/store/commitlog"] == "0.09"
    assert info["commitLogMaxOffset"] == "112999"
    assert info["remainHowManyDataToFlush"] == "289 B"
    assert info["scheduleMessageOffset_1"] == "3,3"
    assert info["scheduleMessageOffset_18"] == "0,1"
    assert info["brokerActive"] == "true"
    assert info["brokerVersionDesc"] == "V5_5_0"
    assert (info["sendThreadPoolQueueSize"], info["sendThreadPoolQueueCapacity"]) == ("7", "100000")


def test_a_long_runtime_is_formatted_in_days() -> None:
    ms = ((1_234 * 24 + 23) * 3600 + 59 * 60 + 58) * 1000 + 999
    info = runtime_info(replace(FACTS, now_ms=FACTS.boot_at_ms + ms), StoreStats(0))
    assert info["runtime"] == "[ 1,234 days, 23 hours, 59 minutes, 58 seconds ]"


def test_rates_that_are_not_known_yet_are_empty() -> None:
    stats = StoreStats(0)
    info = runtime_info(FACTS, stats)
    assert (info["putTps"], info["getTotalTps"]) == ("  ", "0.0 0.0 0.0")
    for second in range(61):
        stats.put_messages, stats.found, stats.missed = 2 * second, second, 3 * second
        stats.sample(second * 1000)
    info = runtime_info(FACTS, stats)
    assert info["putTps"] == "2.0 2.0 "
    assert info["getTotalTps"] == "4.0 4.0 0.0"


def test_totals_of_puts_are_reported() -> None:
    stats = StoreStats(0)
    assert runtime_info(FACTS, stats)["putMessageTimesTotal"] == "1"  # as in Java
    stats.put_messages, stats.put_bytes, stats.put_failures = 4, 1_000, 2
    stats.morning, stats.system_puts = (1, 0), 1
    info = runtime_info(FACTS, stats)
    assert info["putMessageTimesTotal"] == "4"
    assert info["putMessageAverageSize"] == "250.0"
    assert info["putMessageSizeTotal"] == "1000"
    assert info["putMessageFailedTimes"] == "2"
    assert info["msgPutTotalTodayMorning"] == "1"
    assert info["msgPutTotalTodayNow"] == "3"
    assert info["msgGetTotalYesterdayMorning"] == "0"


def test_an_empty_log_has_no_oldest_message() -> None:
    info = runtime_info(replace(FACTS, earliest_at_ms=NO_TIME), StoreStats(0))
    assert info["earliestMessageTimeStamp"] == "-1"


@pytest.mark.parametrize(
    ("space", "ratio"),
    [
        ((100, 100, 100), 0.0),
        ((100, 50, 50), 0.5),
        ((100, 50, 40), 0.56),
        ((1000, 999, 999), 0.01),
        ((0, 0, 0), -1.0),
    ],
)
def test_the_disk_ratio_is_rounded_up(space: tuple[int, int, int], ratio: float) -> None:
    assert disk_ratio(space) == ratio
