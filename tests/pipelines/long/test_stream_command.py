"""Tests of `kourou pipeline ... --follow` and `--new`: refused options, Ctrl-C, continued runs."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.cli import pipeline_run
from kourou.model.message import Message
from kourou.pipelines.directories import StreamDirectory
from kourou.testing.process import start_command
from tests.pipelines.long.test_command import run

Publish = Callable[[Sequence[Message]], list[str]]

TIMEOUT_S = 600.0
"""Only ends a hung process."""


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("throughput", "orders", "--follow"), "--follow is given without --out DIR"),
        (("dedup", "orders", "--new", "--out", "{}"), "--within is required"),
        (("trace", "--new", "--out", "{}", "--stored-in", "orders"), "--stored-in"),
        (("archive", "orders", "--new", "--into", "{}", "--out", "{}"), "--into DIRECTORY"),
        (("throughput", "orders", "--new", "--out", "{}", "--to", "-1h"), "--to is given"),
        (("throughput", "payments", "--new", "--out", "{}"), "TOPIC is payments"),
        (("throughput", "orders", "--new", "--out", "{}", "--clock", "born"), "--clock is born"),
        (
            ("throughput", "orders", "--new", "--out", "{}", "--window", "10s"),
            "--window is 10000 ms",
        ),
    ],
)
def test_wrong_usage_is_named_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, args: tuple[str, ...], text: str
) -> None:
    monkeypatch.setattr(pipeline_run, "_run", None)  # a call would fail
    if args[0] == "throughput":
        first = {
            "pipeline": "throughput",
            "TOPIC": "orders",
            "--tag": "*",
            "--window": "60000 ms",
            "--clock": "store",
            "--lateness": "60000 ms",
        }
        with StreamDirectory(str(tmp_path), first, ("windows",)).held(overwrite=False):
            pass

    done = run(*(one.format(tmp_path) for one in args))

    assert done.code == 2
    assert text in done.err


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    definition = {"pipeline": "throughput"}
    with StreamDirectory(str(tmp_path), definition, ("windows",)).held(overwrite=False):
        done = run("throughput", "orders", "--new", "--out", str(tmp_path))

    assert done.code == 2
    assert "used by another run" in done.err


@pytest.mark.spark
@pytest.mark.slow
def test_explain_prints_the_plan_of_the_stream_and_reads_nothing(spark: SparkSession) -> None:
    for command, plan in (
        (("throughput", "orders"), "StateStoreSave"),
        (("trace",), "SessionWindowStateStoreSave"),
        (("dedup", "orders", "--within", "1m"), "StreamingDeduplicateWithinWatermark"),
        (("dead-letters", "--help"), "--follow"),
        (("archive", "orders", "--into", "absent"), "MapInArrow"),
    ):
        done = run(*command, "--new", "--explain")

        assert (done.code, plan in done.out) == (0, True), command
    assert not Path("absent").exists()


@pytest.mark.spark
@pytest.mark.slow
def test_ctrl_c_ends_a_stream_with_its_report_and_a_later_run_continues(
    namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("t-ctrl-c", b"%d" % n, keys=[f"o-{n % 5}"]) for n in range(10)])
    words = (
        "pipeline",
        "dedup",
        "t-ctrl-c",
        "--by",
        "key",
        "--within",
        "1h",
        "--out",
        str(tmp_path),
    )
    environ = {"KOUROU_NAMESRV": namesrv}
    process = start_command(*words, "--follow", "--every", "1s", "--json", environ=environ)
    try:
        pause = threading.Event()
        committed = tmp_path / "_stream" / "messages" / "commits" / "0"
        while not committed.exists():
            assert process.poll() is None, process.communicate()
            pause.wait(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()

    assert (process.returncode, err) == (0, "")
    document = json.loads(out)
    assert (document["metrics"]["messages"], document["metrics"]["without_key"]) == (5, 0)
    assert document["stream"]["read"] == 10

    publish([Message("t-ctrl-c", b"x", keys=[f"o-{n}"]) for n in range(4, 6)])
    process = start_command(*words, "--new", environ=environ)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()

    assert (process.returncode, err) == (0, "")
    assert "6 messages, 0 without key" in out
    assert "This run: 2 read" in out
    assert "0 late" in out


def commands_of_children(pid: int) -> bytes:
    commands = b""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            commands += Path(f"/proc/{child}/cmdline").read_bytes()
    return commands


@pytest.mark.spark
@pytest.mark.slow
def test_ctrl_c_while_java_starts_leaves_no_process(tmp_path: Path) -> None:
    """The pipes of the command are open until its last process has ended."""
    environ = {"KOUROU_NAMESRV": "127.0.0.1:1", "TMPDIR": str(tmp_path)}
    process = start_command("pipeline", "throughput", "orders", environ=environ)
    try:
        pause = threading.Event()
        while b"org.apache.spark.deploy.SparkSubmit" not in commands_of_children(process.pid):
            assert process.poll() is None, process.communicate()
            pause.wait(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()

    assert (process.returncode, out, err) == (130, "", "")
    assert not list(tmp_path.glob("kourou-spark-*.log"))
