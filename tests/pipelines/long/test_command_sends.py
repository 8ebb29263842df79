"""Tests of `kourou pipeline replay`, `redrive` and `restore`: usage, confirmation, output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.cli import pipeline_sends
from kourou.model.message import Message
from tests.pipelines.conftest import Publish
from tests.pipelines.test_command import run


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("replay", "orders"), "--into"),
        (("replay", "orders", "--into", "or ders"), "or ders"),
        (("replay", "orders", "--into", "orders"), "--same-topic"),
        (("replay", "orders", "--into", "%DLQ%g"), "topics of the system"),
        (("replay", "orders", "--into", "o2", "--tag", "a", "--sql", "b = 1"), "one filter"),
        (("replay", "orders", "--into", "o2", "--rate", "0"), "--rate"),
        (("replay", "orders", "--into", "o2", "--from", "now-1"), "--from"),
        (("replay", "orders", "--into", "o2"), "add --yes"),
        (("redrive",), "GROUP"),
        (("redrive", "bil ling"), "bil ling"),
        (("redrive", "billing", "--origin", "a b", "--yes"), "a b"),
        (("redrive", "billing"), "add --yes"),
        (("restore",), "DIRECTORY"),
        (("restore", "archive", "--into", "SCHEDULE_TOPIC_XXXX"), "topics of the system"),
        (("restore", "archive"), "add --yes"),
    ],
)
def test_wrong_usage_is_named_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], text: str
) -> None:
    monkeypatch.setattr(pipeline_sends, "run_pipeline", None)  # a call would fail

    done = run(*args)

    assert done.code == 2
    assert text in done.err


@pytest.mark.slow
def test_a_group_without_dead_letters_needs_no_spark(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_sends, "run_pipeline", None)

    done = run("redrive", "s-healthy", "--yes", namesrv=namesrv)

    assert (done.code, done.out) == (0, "")
    assert "no dead letters of s-healthy" in done.err


@pytest.mark.spark
@pytest.mark.slow
def test_messages_are_counted_by_topic_day_and_action(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("s-orders", b"%d" % n) for n in range(4)])
    publish([Message("s-copy", b"other")])
    args = ("replay", "s-orders", "--into", "s-copy")

    planned = run(*args, "--dry-run", namesrv=namesrv)
    done = run(*args, "--yes", "--json", namesrv=namesrv)

    assert (planned.code, planned.err) == (0, "")
    heading, line, *_ = planned.out.splitlines()
    assert heading.split() == ["TOPIC", "DAY", "ACTION", "REASON", "MESSAGES", "BYTES"]
    assert line.split()[0] == "s-copy"
    assert "to send" in line
    document = json.loads(done.out)
    assert document["metrics"]["sent"] == 4
    [row] = document["tables"]["copies"]
    assert (row["topic"], row["action"], row["messages"], row["bytes"]) == ("s-copy", "sent", 4, 4)


@pytest.mark.spark
@pytest.mark.slow
def test_errors_are_one_line_with_the_exit_code_of_wrong_usage(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("s-source", b"x")])
    into = ("replay", "s-source", "--yes", "--into")
    for args, text in (
        ((*into, "s-absent"), "kourou topic create s-absent"),
        ((*into, "s-source", "--same-topic", "--where", "colour = 1"), "--where 'colour = 1': "),
        (("restore", str(tmp_path), "--yes"), "contains no archive"),
    ):
        done = run(*args, namesrv=namesrv)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert done.err.startswith("Error: ")
        assert text in done.err


@pytest.mark.spark
@pytest.mark.slow
def test_explain_reads_and_sends_nothing(spark: SparkSession) -> None:
    for args in (("replay", "orders", "--into", "o2"), ("redrive", "billing", "--to-topic")):
        done = run(*args, "--explain")  # there is no cluster

        assert done.code == 0
        assert "Table messages:\n" in done.out
