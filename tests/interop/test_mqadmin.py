"""Tests that the official `mqadmin` 5.5.0 prints the same for Kourou and for the Java broker.

The same steps (`admin_steps.py`) run against both at the same time. The complete output is
compared, except for addresses, times, ids and rates, which differ in each run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kourou.testing.process import Serving, run_command
from tests.interop.admin_steps import STEPS, play
from tests.interop.mqadmin import Printed, mask
from tests.interop.peer import start_java

# Java writes the record checksum only if enabled; Kourou does by default. With the checksum,
# records have the same size in both.
SAME_RECORDS = "enabledAppendPropCRC=true\n"

UNORDERED = {"topicList", "topicList ", "topicList -c", "statsAll"}
"""Commands whose lines are in the order of a Java hash table."""

TABLES = {
    "brokerStatus -b {broker}",
    "brokerStatus -c DefaultCluster",
    "getBrokerConfig -b {broker}",
    "getBrokerConfig -c DefaultCluster",
    "getNamesrvConfig",
}
"""Commands that print keys and values; only keys of both outputs are compared."""

OWN = {
    # addresses and start time
    "bindAddress",
    "bootTimestamp",
    "earliestMessageTimeStamp",
    "listenPort",
    "namesrvAddr",
    "runtime",
    "startAcceptSendRequestTimeStamp",
    "storePathRootDir",
    "commitLogDirCapacity",
    # interval of queue syncs: shorter in Kourou, to bound recovery
    "flushConsumeQueueThoroughInterval",
    # measured
    "getFoundTps",
    "getMessageEntireTimeMax",
    "getMissTps",
    "getTotalTps",
    "getTransferredTps",
    "putTps",
    "putLatency99",
    "putLatency999",
    "putMessageDistributeTime",
    "putMessageEntireTimeMax",
    # unlimited in Kourou: long delays are stored again
    "timerMaxDelaySec",
    # on in Kourou: each send of a scheduled message returns a recall handle
    "recallMessageEnable",
    # Kourou writes zeros ahead of the log's records
    "warmMapedFileEnable",
    # limit of waiting sends
    "sendThreadPoolQueueCapacity",
}
"""Keys whose values may differ."""

COMMON_MIN = {"brokerStatus": 40, "getBrokerConfig": 45, "getNamesrvConfig": 8}
"""Minimum number of common keys."""

DIFFERENT = {
    "updateBrokerConfig -b {broker} -k nonsense -v 6": (
        "unknown setting nonsense",
        "Java accepts any key, and ignores it",
    ),
    "updateSubGroup -g audit -b {broker} --attributes +lite.bind.topic=Orders": (
        "unsupported key: lite.bind.topic",
        "lite topics are not supported",
    ),
}
"""Steps with a different answer: the expected output and the reason."""


def table(printed: Printed) -> dict[str, str]:
    """Return the keys and values of lines like `key = value` and `127.0.0.1:1  key : value`."""
    lines = re.findall(r"(?m)^(?:\d\S+:\d+ +)?(\w[\w.]*) *(?:=  |: )(.*)$", printed.out)
    return {key: value.strip() for key, value in lines}


@pytest.fixture(scope="module")
def printed(jars: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Printed]]:
    """Return server -> step -> output, for one run against each server."""
    home = tmp_path_factory.mktemp("kourou")
    (home / "broker.conf").write_text("messageDelayLevel=1s 1s 1s 1s 1s 1s\n")
    options = ("--config", str(home / "broker.conf"), "--no-console")
    java_home = tmp_path_factory.mktemp("java")
    java = start_java(jars, java_home, options=SAME_RECORDS)
    try:
        with Serving.start(home / "store", *options) as kourou, ThreadPoolExecutor(2) as pool:
            at_java = pool.submit(_play, java.namesrv_addr, java.broker_addr, java_home)
            at_kourou = pool.submit(_play, kourou.namesrv, kourou.broker, home)
            both = {"java": at_java.result(), "kourou": at_kourou.result()}
            assert kourou.stop().code == 0
    finally:
        java.stop()
    assert run_command("store", "check", str(home / "store")).code == 0
    return both


def _play(namesrv_addr: str, broker_addr: str, home: Path) -> dict[str, Printed]:
    return asyncio.run(play(namesrv_addr, broker_addr, home))


@pytest.mark.parametrize("step", [s for s in STEPS if s not in TABLES and s not in DIFFERENT])
def test_command_prints_the_same_as_for_java(
    step: str, printed: Mapping[str, Mapping[str, Printed]]
) -> None:
    java, kourou = (mask(printed[server][step]).splitlines() for server in ("java", "kourou"))
    if step in UNORDERED:
        java, kourou = sorted(java), sorted(kourou)
    assert kourou == java


@pytest.mark.parametrize("step", sorted(TABLES))
def test_table_has_the_same_values_as_for_java(
    step: str, printed: Mapping[str, Mapping[str, Printed]]
) -> None:
    java, kourou = (table(printed[server][step]) for server in ("java", "kourou"))
    both = java.keys() & kourou.keys() - OWN
    assert len(both) >= COMMON_MIN[step.split(maxsplit=1)[0]]
    assert {key: kourou[key] for key in both} == {key: java[key] for key in both}


@pytest.mark.parametrize("step", sorted(DIFFERENT))
def test_different_answer_is_the_documented_one(
    step: str, printed: Mapping[str, Mapping[str, Printed]]
) -> None:
    expected, _ = DIFFERENT[step]
    assert expected in printed["kourou"][step].err


def test_only_expected_steps_fail(printed: Mapping[str, Mapping[str, Printed]]) -> None:
    failed = {step for step in STEPS if printed["kourou"][step].is_failure}
    java = {step for step in STEPS if printed["java"][step].is_failure}
    assert failed == java | DIFFERENT.keys()
