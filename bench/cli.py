"""Measures the time of read-only commands, as seen by the shell.

    python -m bench.cli [--rounds N] [--mqadmin]

Starts a name server and a broker on free ports with a few topics, runs each command several times,
and prints the median wall clock and CPU time in seconds, and the ratio of `mqadmin clusterList` to
it. The time of mqadmin is measured with --mqadmin, which needs Maven and a JDK; otherwise it is the
4.2 s that RocketMQ 5.5.0 took on two cores. The exit code is 1 if a command takes longer than
`LIMIT_S`. On a busy machine, the CPU time shows the wall clock time of an idle one.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kourou.testing.process import Serving, run_command
from tests.interop.clients import admin_command

LIMIT_S: Final = 0.4
MQADMIN_S: Final = 4.2
TOPICS: Final = 20

COMMANDS: Final[tuple[tuple[str, ...], ...]] = (
    ("--help",),
    ("cluster", "list"),
    ("topic", "list"),
    ("topic", "describe", "bench-0"),
    ("topic", "route", "bench-0"),
    ("topic", "groups", "bench-0"),
    ("message", "print", "bench-0"),
    ("message", "show", "bench-0", "broker-a/0@0"),
    ("namesrv", "config"),
    ("group", "list"),
    ("health",),
)


def _times_s(command: Sequence[str], environ: dict[str, str], rounds: int) -> tuple[float, float]:
    """Return the median wall clock and CPU time of a command in seconds."""
    walls, cpus = [], []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(command, env=environ, check=True, capture_output=True)
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mqadmin", action="store_true", help="measure mqadmin too")
    options = parser.parse_args()
    slow = []
    with tempfile.TemporaryDirectory() as directory, Serving.start(Path(directory)) as serving:
        environ = {**os.environ, "KOUROU_NAMESRV": serving.namesrv}
        for number in range(TOPICS):
            made = run_command(
                *("topic", "create", f"bench-{number}", "--queues", "1"), environ=environ
            )
            assert made.code == 0, made.err
        run_command("send", "bench-0", "x", environ=environ)
        java_s = MQADMIN_S
        if options.mqadmin:
            mqadmin = [*admin_command(), "clusterList", "-n", serving.namesrv]
            java_s, _ = _times_s(mqadmin, environ, options.rounds)
        print(f"{'command':45} {'wall s':>7} {'CPU s':>6} {'mqadmin takes':>14}")
        for command in COMMANDS:
            words = [str(Path(sys.executable).parent / "kourou"), *command]
            taken_s, cpu_s = _times_s(words, environ, options.rounds)
            name, ratio = f"kourou {' '.join(command)}", java_s / taken_s
            print(f"{name:45} {taken_s:7.2f} {cpu_s:6.2f} {ratio:13.1f}x")
            if taken_s > LIMIT_S:
                slow.append(" ".join(command))
    if slow:
        sys.exit(f"longer than {LIMIT_S} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
