"""Measures sends to two brokers of `kourou cluster` against sends to one, on the same cores.

Two load generators run at the same time in both cases: each sends to its own broker, or both to the
only one. So cases differ in the number of brokers only. The CPU of the generators is included: on
a machine of two cores they take a large part.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench import load_generator
from bench.peers import FAST
from bench.question import Figure, Question, Values
from bench.servers import STOP_SECONDS, Flush
from bench.turn import WARM_SECONDS, Turn

_GENERATORS: Final = 2
_SHAPE: Final = {"conns": 4, "window": 64, "size": 1024, "topic": "bench-brokers"}
_CONFIG: Final = """\
flushDiskType={flush}_FLUSH
mappedFileSizeCommitLog=1073741824
maxHashSlotNum=5000000
maxIndexNum=20000000
"""
"""Files of Java's sizes, as those of the other questions."""


@contextmanager
def _cluster(home: Path, flush: Flush, brokers: int) -> Iterator[list[dict[str, Any]]]:
    """Run a cluster of masters; yield each with its name, address and pid.

    Raises:
        RuntimeError: it did not start.
    """
    home.mkdir(parents=True)
    (home / "broker.conf").write_text(_CONFIG.format(flush=flush.upper()))
    command = (
        *(sys.executable, "-m", "kourou.cli.main", "cluster", "--json", "--namesrv-port", "0"),
        *("--brokers", str(brokers), "--dir", str(home), "--config", str(home / "broker.conf")),
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home)
    assert process.stdout is not None
    try:
        yield _masters(process.stdout)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_SECONDS)


def _masters(events: Iterator[str]) -> list[dict[str, Any]]:
    for line in events:
        event = json.loads(line)
        if event["event"] == "cluster.ready":
            return [member for member in event["members"] if member["role"] == "master"]
    raise RuntimeError("the cluster ended before it was ready")


def _rate(turn: Turn, flush: Flush, brokers: int) -> float:
    """Return the acknowledged messages per second of all generators together."""
    home = turn.stage.directory(f"{brokers}-brokers")
    times = {"warm": f"{WARM_SECONDS}s", "dur": f"{turn.seconds}s"}
    try:
        with _cluster(home, flush, brokers) as masters:
            pids = ",".join(str(master["pid"]) for master in masters)

            def load(number: int) -> float:
                master = masters[number % brokers]
                names = {"addr": master["address"], "broker": master["broker"], "pids": pids}
                rate = load_generator.run("send", **names, **times, **_SHAPE)["msgs_per_s"]
                return float(rate)

            load(0)  # one after the other first, so that both topics exist
            load(1)
            with ThreadPoolExecutor(_GENERATORS) as pool:
                return sum(pool.map(load, range(_GENERATORS)))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measure(turn: Turn, flush: Flush) -> Values | None:
    if turn.peer.name != FAST:
        return None
    turn.stage.suspend_all()
    one = _rate(turn, flush, 1)
    turn.stage.suspend_all()
    two = _rate(turn, flush, 2)
    return {"one broker": one, "two brokers": two, "ratio": two / one}


def _question(flush: Flush) -> Question:
    return Question(
        name=f"brokers-{flush}",
        text=f"send to two brokers against one, 2 generators of 4 x 64 in flight, {flush} flush",
        figures=(
            Figure("one broker", "messages/s", is_more_better=True),
            Figure("two brokers", "messages/s", is_more_better=True),
            Figure("ratio", "x", is_more_better=True),
        ),
        measure=lambda turn: _measure(turn, flush),
        is_long=True,
    )


QUESTIONS: Final = (_question("async"), _question("sync"))
