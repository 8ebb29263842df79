"""The official `mqadmin` 5.5.0 prints of Kourou what it prints of the Java broker.

The same steps are played against both (`admin_steps.py`), at the same time. Compared is all that is
printed, but for what no two runs share: addresses, times, ids, rates.
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
from tests.interop.mqadmin import Printed
from tests.interop.peer import start_java

# Java writes the checksum of a record's properties only when asked to; Kourou does by default. With
# it, records are as long here as there.
SAME_RECORDS = "enabledAppendPropCRC=true\n"

MASKS = (
    (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "TIME"),
    (r"\b20\d{15}\b", "TIME"),
    (r"\b1[6-9]\d{11}\b", "TIME"),
    (r"\b[0-9A-F]{30,}\b", "ID"),
    (r"@\d+#[0-9a-f]+", "@INSTANCE"),
    (r"\b\d+\.\d+\b", "RATE"),
    (r"\brt=\d+ms", "rt=RATE"),
    (r"__CRC32#=\d+", "__CRC32#=CRC"),
    (r"/\S*/export/", "EXPORT/"),
    # The failures must be equal; their texts and stack traces may differ.
    (r"(?m)^\t(at |\.\.\. ).*\n", ""),
    (r"(CODE: \d+ +DESC: ).*\n(?:(?!Caused|\t).*\n)*", r"\1REMARK\n"),
    (r"For more information.*\n?|See https?:.*details\.|No registered broker has.*", ""),
    (r" *\n", "\n"),
    (r" {2,}", "  "),
    (r"\b(true|CLUSTERING)  \d+", r"\1  RATE"),  # how long a send took; messages a second
)

UNORDERED = {"topicList", "topicList ", "topicList -c", "statsAll"}
"""Commands whose lines come in the order of a Java hash table of the server's answer."""

TABLES = {
    "brokerStatus -b {broker}",
    "brokerStatus -c DefaultCluster",
    "getBrokerConfig -b {broker}",
    "getBrokerConfig -c DefaultCluster",
    "getNamesrvConfig",
}
"""Commands that print keys and values; those are compared that both know."""

OWN = {
    # where it runs, and since when
    "bindAddress",
    "bootTimestamp",
    "earliestMessageTimeStamp",
    "listenPort",
    "namesrvAddr",
    "runtime",
    "startAcceptSendRequestTimeStamp",
    "storePathRootDir",
    "commitLogDirCapacity",
    # how often queues are synced: recovery is to read little
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
    # no delay is too long: it rolls on
    "timerMaxDelaySec",
    # every send of a scheduled message answers with a recall handle
    "recallMessageEnable",
    # zeros go ahead of the log's records, with their write
    "warmMapedFileEnable",
    # how many sends may wait here
    "sendThreadPoolQueueCapacity",
}
"""Keys of tables whose values need not be the same."""

COMMON_MIN = {"brokerStatus": 40, "getBrokerConfig": 45, "getNamesrvConfig": 8}
"""How many keys both know, at least."""

DIFFERENT = {
    "updateBrokerConfig -b {broker} -k nonsense -v 6": (
        "unknown setting nonsense",
        "Java takes any key, and forgets it",
    ),
    "updateSubGroup -g audit -b {broker} --attributes +lite.bind.topic=Orders": (
        "unsupported key: lite.bind.topic",
        "there are no lite topics yet",
    ),
}
"""Steps that are answered otherwise: what is printed, and why."""


def mask(printed: Printed) -> str:
    """Return all that was printed, without what no two runs share."""
    text = f"{printed.out}\nERR {printed.err}"
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def table(printed: Printed) -> dict[str, str]:
    """Return the keys and values of lines like `key = value` and `127.0.0.1:1  key : value`."""
    lines = re.findall(r"(?m)^(?:\d\S+:\d+ +)?(\w[\w.]*) *(?:=  |: )(.*)$", printed.out)
    return {key: value.strip() for key, value in lines}


@pytest.fixture(scope="module")
def printed(jars: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Printed]]:
    """Return server -> step -> what was printed, of a life of each of them."""
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
def test_a_command_prints_what_it_prints_of_java(
    step: str, printed: Mapping[str, Mapping[str, Printed]]
) -> None:
    java, kourou = (mask(printed[server][step]).splitlines() for server in ("java", "kourou"))
    if step in UNORDERED:
        java, kourou = sorted(java), sorted(kourou)
    assert kourou == java


@pytest.mark.parametrize("step", sorted(TABLES))
def test_a_table_has_the_values_that_java_has(
    step: str, printed: Mapping[str, Mapping[str, Printed]]
) -> None:
    java, kourou = (table(printed[server][step]) for server in ("java", "kourou"))
    both = java.keys() & kourou.keys() - OWN
    assert len(both) >= COMMON_MIN[step.split(maxsplit=1)[0]]
    assert {key: kourou[key] for key in both} == {key: java[key] for key in both}


@pytest.mark.parametrize("step", sorted(DIFFERENT))
def test_a_step_that_is_not_answered_as_java_says_why(
    step: str, printed: Mapping[str, Mapping[str, Printed]]
) -> None:
    expected, _ = DIFFERENT[step]
    assert expected in printed["kourou"][step].err


def test_only_what_must_fail_fails(printed: Mapping[str, Mapping[str, Printed]]) -> None:
    failed = {step for step in STEPS if printed["kourou"][step].is_failure}
    java = {step for step in STEPS if printed["java"][step].is_failure}
    assert failed == java | DIFFERENT.keys()
