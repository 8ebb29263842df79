"""Run the short benchmarks: Kourou and, where Maven is, the Java broker, interleaved.

    python -m bench [--rounds N] [--seconds S] [--no-java]

Prints a table of medians and ratios, and writes every figure with machine, commit and versions to
var/bench/results.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections import defaultdict
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import idle_memory, load_generator, pull, send, start_up
from bench.servers import Server, java, kourou
from tests.interop.clients import jars as java_jars

QUESTIONS = (start_up, idle_memory, send, pull)
RESULTS = load_generator.ROOT / "var" / "bench" / "results.json"
Figures = dict[str, dict[str, list[float]]]


def _machine() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    return {
        "cpu": cpu,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or "unknown",
    }


def _measure(server: Server, seconds: int, figures: Figures) -> None:
    for question in QUESTIONS:
        for measure, value in question.measure(server, seconds).items():
            figures[measure][server.name].append(value)


def _print(figures: Figures, console: Console) -> None:
    table = Table(title="medians; ratio above 1 means Kourou does better")
    for column in ("measure", "kourou", "java 5.5.0", "ratio"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for measure, by_server in figures.items():
        ours = statistics.median(by_server["kourou"])
        theirs = statistics.median(by_server["java"]) if by_server.get("java") else None
        if theirs is None:
            ratio = "-"
        else:
            ratio = f"{ours / theirs:.2f}" if measure.endswith("/s") else f"{theirs / ours:.2f}"
        other = "-" if theirs is None else f"{theirs:,.2f}"
        table.add_row(measure, f"{ours:,.2f}", other, ratio)
    console.print(table)


def main() -> None:
    """Run every question on every server, round by round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--no-java", action="store_true", help="measure Kourou alone")
    arguments = parser.parse_args()
    load_generator.build()
    with_java = not arguments.no_java and shutil.which("mvn") is not None
    jars = java_jars("5.5.0") if with_java else None
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as directory:
            home = Path(directory)
            servers: list[AbstractContextManager[Server]] = [kourou(home / "kourou")]
            if jars is not None:
                servers.append(java(jars, home / "java"))
            for starting in servers:
                with starting as server:
                    _measure(server, arguments.seconds, figures)
    _print(figures, Console())
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": _machine(), "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
