"""Modules of the demo: flight ids, ledgers, comparisons, child processes, the stream, charts."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

ANSWER_LIMIT_S = 30.0
FLIGHTS = Path(__file__).parent.parent.parent / "examples" / "flights"


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    """Make the demo's modules importable, as when it runs as a script."""
    sys.path.insert(0, str(FLIGHTS))
    yield
    sys.path.remove(str(FLIGHTS))


def module(name: str) -> ModuleType:
    return import_module(name)


def entry(flight_id: str, queue_offset: int, late: int = 0) -> bytes:
    line: bytes = module("ledger").Entry(flight_id, 3, queue_offset, late, late * 20).line()
    return line


def test_flight_is_published_with_a_unique_id_and_all_columns() -> None:
    data = module("data")

    flights = list(data.flights_of(data.load_flights(2_000)))

    first = json.loads(flights[0].body)
    assert len({flight.flight_id for flight in flights}) == 2_000
    assert flights[0].flight_id == first["flight_id"] == "2013-01-01-UA-1545-EWR"
    assert flights[0].carrier == first["carrier"] == "UA"
    assert first["dep_delay"] == 2
    assert first["time_hour"] == "2013-01-01T10:00:00Z"
    assert len(first) == 20


def test_ledgers_are_read_line_by_line_while_they_grow(tmp_path: Path) -> None:
    files = [tmp_path / "1.txt", tmp_path / "2.txt"]
    ledgers = module("ledger").Ledgers(files)
    ledgers.read_new_lines()
    assert ledgers.deliveries == 0

    second = entry("b", 1)
    files[0].write_bytes(entry("a", 0, late=1) + second[:5])
    ledgers.read_new_lines()
    assert ledgers.deliveries == 1

    with files[0].open("ab") as stream:
        stream.write(second[5:] + entry("a", 0, late=1))
    files[1].write_bytes(entry("a", 7, late=4))
    ledgers.read_new_lines()

    assert ledgers.deliveries == 4
    assert ledgers.flights == {"a": 3, "b": 1}
    assert ledgers.records == {(3, 0), (3, 1), (3, 7)}
    assert (ledgers.late, ledgers.minutes) == (5, 100)


def test_missing_and_unknown_ids_are_found() -> None:
    comparison = module("comparison").compare_ids(["a", "b", "c"], ["b", "c", "c", "x"])

    assert comparison.missing == ["a"]
    assert comparison.unknown == ["x"]


def test_differing_value_is_found_in_any_row_order() -> None:
    differing_columns = module("comparison").differing_columns
    flights = pa.table({"flight_id": ["a", "b"], "delay": [1, None]})
    turned = pa.table({"flight_id": ["b", "a"], "delay": pa.array([None, 1], pa.int32())})
    changed = pa.table({"flight_id": ["b", "a"], "delay": [0, 1]})

    assert differing_columns(flights, turned) == []
    assert differing_columns(flights, changed) == ["delay"]


def child(tmp_path: Path, program: str) -> Any:
    return module("children").Child("the child", ["-c", program], tmp_path / "child.log")


def test_flights_are_in_the_order_of_their_departure() -> None:
    table = module("data").load_flights(30_000)

    times = table["time_hour"].to_pylist()
    assert times == sorted(times)


def test_lines_of_a_child_are_read_one_by_one_and_all_that_there_are(tmp_path: Path) -> None:
    program = """
import sys, time
print('{"n": 1}\\n{"n": 2}\\n{"n"', end="", flush=True)
sys.stdin.read()
print(": 3}", flush=True)
"""
    with child(tmp_path, program) as running:
        assert running.read_line(ANSWER_LIMIT_S) == {"n": 1}
        assert running.read_new_lines() == [{"n": 2}]
        assert running.read_new_lines() == []
        running.end_input()
        assert running.read_line(ANSWER_LIMIT_S) == {"n": 3}
        running.wait()


def test_failure_of_a_child_is_one_line_that_names_its_log(tmp_path: Path) -> None:
    failure = pytest.raises(module("children").ChildFailedError)
    with child(tmp_path, "raise SystemExit(7)") as failed, failure as caught:
        failed.read_line(ANSWER_LIMIT_S)

    [line] = str(caught.value).splitlines()
    assert "exit code 7" in line
    assert str(tmp_path / "child.log") in line


def test_stop_also_ends_processes_that_the_child_started(tmp_path: Path) -> None:
    program = """
import json, subprocess, sys, time
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"pid": started.pid}), flush=True)
time.sleep(600)
"""
    with child(tmp_path, program) as running:
        ended = os.pidfd_open(running.read_line(ANSWER_LIMIT_S)["pid"])

    assert select.select([ended], [], [], ANSWER_LIMIT_S)[0]
    os.close(ended)


def test_interrupted_stop_kills_a_child_that_ignores_sigterm(tmp_path: Path) -> None:
    program = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("{}", flush=True))
print("{}", flush=True)
while True:
    time.sleep(600)
"""
    running = child(tmp_path, program)
    running.read_line(ANSWER_LIMIT_S)
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()

    with pytest.raises(KeyboardInterrupt):
        running.stop()

    with pytest.raises(ProcessLookupError):
        os.kill(running.pid, 0)


def test_stream_adds_batches_and_shows_the_last_one_with_flights(tmp_path: Path) -> None:
    program = """
import json, sys

def batch(rows, first=None, last=None, **delays):
    delays = {"EWR": None, "JFK": None, "LGA": None, **delays}
    values = {"rows": rows, "first": first, "last": last, "rows_per_second": rows / 2, **delays}
    print(json.dumps({"batch": values}), flush=True)

batch(0)
sys.stdin.read()
batch(300, "2013-01-31 10:00:00", "2013-02-01 03:00:00", EWR=11.6, LGA=-2.2)
batch(0)
print(json.dumps({"report": {"flights": 300}}), flush=True)
"""
    with child(tmp_path, program) as job:
        stream = module("stream").Stream(job)
        stream.wait_until_ready()
        assert (stream.rows, stream.window) == (0, None)

        assert stream.finish() == {"flights": 300}

    assert (stream.rows, stream.rows_per_second) == (300, 150)
    assert str(stream.window) == "Jan 31 to Feb 1: EWR 12 min, JFK -, LGA -2 min"


def test_stream_notices_that_its_job_ended(tmp_path: Path) -> None:
    with child(tmp_path, "raise SystemExit(7)") as job:
        stream = module("stream").Stream(job)
        select.select([job.output], [], [], ANSWER_LIMIT_S)

        with pytest.raises(module("children").ChildFailedError, match=r"exit code 7"):
            stream.read_new_batches()


def test_chart_page_shows_the_lag_behind_the_producer_and_the_delays() -> None:
    charts = module("charts")
    history = charts.History()
    history.add(1_000, 0, 0, 0)
    history.add(2_000, 50, 40, 0)
    history.add(3_000, 50, 52, 52)  # two messages were stored twice
    report = {
        "weeks": [
            {"origin": "EWR", "week_ms": 0, "delay_minutes": 7.5},
            {"origin": "LGA", "week_ms": 0, "delay_minutes": None},
        ],
        "carriers": [{"carrier": "UA", "delay_minutes": 4.0}],
    }

    found = charts.charts_of(history, report)

    messages, lag, delays, carriers = found
    assert messages.series["in the Parquet"] == [(1_000, 0), (2_000, 0), (3_000, 52)]
    assert lag.series["Spark"] == [(1_000, 0), (2_000, 50), (3_000, 0)]
    assert delays.series["EWR"] == [(0, 7.5)]
    assert delays.series["LGA"] == []
    assert carriers.bars == {"UA": 4.0}
