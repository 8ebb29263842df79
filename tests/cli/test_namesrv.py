"""Tests of `kourou namesrv` and `kourou cluster`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kourou.cli.cluster import BrokerLine, broker_line, print_lines
from kourou.testing.process import Outcome, Serving

Kourou = Callable[..., Outcome]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


@pytest.mark.slow
def test_an_option_is_shown_and_changed(kourou: Kourou, serving: Serving) -> None:
    def value() -> str:
        [server] = document(kourou("namesrv", "config", "--json"))
        assert server["namesrv"] == serving.namesrv
        return str(server["config"]["enableTopicList"])

    assert value() == "true"
    changed = kourou("namesrv", "set", "enableTopicList=false")
    assert changed.out == "enableTopicList=false: set on all name servers until they stop\n"
    assert value() == "false"
    assert document(kourou("namesrv", "set", "enableTopicList=true", "--json")) == {
        "config": {"enableTopicList": "true"}
    }
    rows = kourou("namesrv", "config").out.splitlines()
    assert rows[0].split() == ["NAME", "SERVER", "OPTION", "VALUE"]
    assert [serving.namesrv, "enableTopicList", "true"] in [row.split() for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("listenPort=1",), 1, "listenPort cannot be changed"),
        (("nonsense=1",), 1, "orderMessageEnable"),
        (("orderMessageEnable",), 2, "'orderMessageEnable' is not KEY=VALUE"),
        ((), 2, "OPTION=VALUE"),
    ],
)
def test_an_option_that_cannot_be_changed_is_refused(
    kourou: Kourou, options: tuple[str, ...], code: int, text: str
) -> None:
    refused = kourou("namesrv", "set", *options)

    assert (refused.code, refused.out) == (code, "")
    assert text in refused.err


@pytest.mark.slow
def test_a_key_is_put_listed_and_deleted(kourou: Kourou) -> None:
    assert kourou("namesrv", "kv", "put", "ns", "a", "one two").out == "ns a: set\n"
    assert kourou("namesrv", "kv", "get", "ns", "a").out == "one two\n"
    assert kourou("namesrv", "kv", "list", "ns").out == "KEY  VALUE\na    one two\n"
    assert document(kourou("namesrv", "kv", "list", "ns", "--json"))["values"] == {"a": "one two"}
    assert kourou("namesrv", "kv", "delete", "ns", "a").out == "ns a: deleted\n"

    missing = kourou("namesrv", "kv", "get", "ns", "a")
    assert (missing.code, missing.out) == (1, "")
    assert "Namespace: ns Key: a" in missing.err


@pytest.mark.slow
def test_broker_is_removed_from_service_and_returned(kourou: Kourou, serving: Serving) -> None:
    kourou("topic", "create", "n-perm")

    def perm() -> str:
        return str(document(kourou("topic", "route", "n-perm", "--json"))["brokers"][0]["perm"])

    reported = kourou("namesrv", "wipe-write-perm", "broker-a").out
    assert perm() == "R--"
    back = document(kourou("namesrv", "add-write-perm", "broker-a", "--json"))
    assert perm() == "RW-"
    topics = back["name_servers"][0]["topics"]
    assert reported == f"broker-a: {topics} topics no longer writable on {serving.namesrv}\n"
    unknown = kourou("namesrv", "wipe-write-perm", "broker-z")
    assert (unknown.code, "registered brokers: broker-a" in unknown.err) == (1, True)


@pytest.mark.slow
def test_a_cluster_lists_its_brokers(kourou: Kourou, serving: Serving) -> None:
    kourou("send", "n-cluster", "x")

    [broker] = document(kourou("cluster", "list", "--json"))

    assert {name: broker[name] for name in ("cluster", "broker", "id", "address", "state")} == {
        "cluster": "DefaultCluster",
        "broker": "broker-a",
        "id": 0,
        "address": serving.broker,
        "state": "ok",
    }
    assert broker["in_today"] >= 1
    assert broker["oldest_store_at_ms"] > 0
    assert 0 < broker["disk_ratio"] < 1
    table = kourou("cluster", "list").out.splitlines()
    assert table[0].split() == ["DefaultCluster", "V5_5_0"]
    assert table[1].split()[:3] == ["BROKER", "ID", "ADDRESS"]
    assert table[2].split()[-1] == "ok"


def test_a_busy_cluster_fits_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    line = BrokerLine(
        cluster="DefaultCluster",
        broker="broker-a",
        id=0,
        address="192.168.1.10:10911",
        version="V5_5_0",
        in_tps=65_432.1,
        out_tps=999.6,
        in_today=3_999_999_999,
        out_today=99_960,
        oldest_store_at_ms=1,
        disk_ratio=1.0,
    )
    print_lines([line], now_ms=72 * 3_600_000)

    (_, _, row) = lines = capsys.readouterr().out.splitlines()
    assert row.split()[3:8] == ["65.4k", "1.0k", "4.0G", "100k", "2d"]
    assert max(map(len, lines)) <= 80


WHERE = {"cluster": "c", "broker": "b", "broker_id": 0, "address": "127.0.0.1:1"}


def test_runtime_information_is_parsed_as_numbers() -> None:
    reported = {
        "brokerActive": "false",
        "kourouUnwritable": "its disk is full",
        "brokerVersionDesc": "V5_5_0",
        "putTps": "12.5 11.0 10.0",
        "getTransferredTps": "0.0 0.0 0.0",
        "msgPutTotalTodayMorning": "100",
        "msgPutTotalTodayNow": "142",
        "earliestMessageTimeStamp": "-1",
        "commitLogDiskRatio": "0.25",
    }

    line = broker_line(reported, cluster="c", broker="b", broker_id=0, address="127.0.0.1:1")

    assert (line.in_tps, line.out_tps, line.in_today, line.out_today) == (12.5, 0.0, 42, None)
    assert (line.oldest_store_at_ms, line.disk_ratio) == (None, 0.25)
    assert line.state == "refuses sends"


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1.0", "NaN NaN"])
def test_invalid_number_is_omitted(text: str) -> None:
    reported = {"putTps": text, "msgPutTotalTodayNow": text, "msgPutTotalTodayMorning": "0"}

    line = broker_line(reported, cluster="c", broker="b", broker_id=0, address="127.0.0.1:1")

    assert (line.in_tps, line.in_today) == (None, None)
