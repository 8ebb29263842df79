"""Measures the growth of a broker's memory while 10 GB are sent.

    python -m bench.memory_growth [--gb 10] [--steps 10] [--batch 32] [--flush async] [--dir DIR]

Starts `kourou serve` (name server and broker in one process), and after each step prints the
anonymous part of its resident memory (RssAnon), which excludes files and the system's cache. The
first messages create the current index file, whose slots stay in memory from then on (20 MB with
`prod`); a broker that starts on an existing store has them from the start.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import load_generator
from kourou.testing.process import Serving

_TOPIC: Final = "growth"
_SIZE: Final = 1024
_REST_S: Final = 2.0
_FIRST_MESSAGES: Final = 1_024


def anonymous_mib(pid: int) -> float:
    """Return the RssAnon of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024


def send(broker: str, messages: int, batch: int) -> float:
    """Send messages of 1 KB on 8 connections, and return messages per second."""
    report = load_generator.run(
        "send",
        addr=broker,
        topic=_TOPIC,
        conns=8,
        window=16,
        size=_SIZE,
        count=messages,
        batch=batch,
        dur="600s",
    )
    return float(report["msgs_per_s"])


def _row(sent: str, pid: int, before: Sequence[float], rate: float = 0) -> float:
    """Wait, print the server's memory and its growth, and return the memory in MiB."""
    time.sleep(_REST_S)
    now = anonymous_mib(pid)
    more = ", ".join(f"{now - one:+.1f}" for one in before)
    print(f"{sent:>14} {rate:>12,.0f} {now:>8.1f} MiB {more:>32} MiB", flush=True)
    return now


def main() -> None:
    """Measure, and print a row for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="messages per request")
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--profile", default="prod")
    parser.add_argument("--dir", type=Path, default=None, help="on a disk with enough space")
    arguments = parser.parse_args()
    load_generator.build()
    print(f"{'sent':>14} {'messages/s':>12} {'RssAnon':>12} {'growth since earlier rows':>36}")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        options = ("--flush", arguments.flush, "--profile", arguments.profile)
        with Serving.start(Path(directory), *options) as serving:
            pid = serving.process.pid
            load_generator.run("setup", addr=serving.broker, topic=_TOPIC, queues=8)
            found = [_row("nothing", pid, [])]
            step_gb = arguments.gb / arguments.steps
            send(serving.broker, _FIRST_MESSAGES, arguments.batch)
            found.append(_row(f"{_FIRST_MESSAGES:,} messages", pid, found))
            for step in range(1, arguments.steps + 1):
                messages = int(step_gb * 1e9 / _SIZE)
                rate = send(serving.broker, messages, arguments.batch)
                _row(f"{step * step_gb:g} GB", pid, found, rate)
            began_s = time.perf_counter()
            serving.stop()
            print(f"stopped in {time.perf_counter() - began_s:.2f} s")


if __name__ == "__main__":
    main()
