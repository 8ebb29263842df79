"""Profiles a broker under load: CPU time by function, by layer and by system call.

    python -m bench.profile send|batch|pull [--flush sync] [--conns 64] [--window 1] [--seconds 5]
                                [--bare] [--within] [--keep FILE]

Starts a broker and loads it three times: without a profiler, for user and kernel CPU per message;
with py-spy, for shares by function and by layer; and with strace, if it is installed, for system
calls per message. Sleeping threads are not counted. py-spy is installed from PyPI into
var/bench/tools; with `--within`, for systems where it must not attach, a thread of the broker
samples its loop instead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import bare_install, load_generator
from bench.servers import Server, start_kourou
from bench.stacks import KERNEL, Costs, costs

_TOOLS: Final = load_generator.VAR / "tools"
_RATE: Final = 500
_WARM_S: Final = 2.0
_SETTLE_S: Final = 0.5
_TRACE_S: Final = 2.0
_ROWS: Final = 30
_FILL: Final = 100_000
_INSTALL_SECONDS: Final = 120
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("send", "batch", "pull"))
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument("--conns", type=int, default=64)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rows", type=int, default=_ROWS, help="functions shown")
    parser.add_argument("--bare", action="store_true", help="without uvloop and isal")
    parser.add_argument("--within", action="store_true", help="sample from a thread of the broker")
    parser.add_argument("--no-native", action="store_true", help="without frames of C code")
    parser.add_argument("--source", type=Path, help="the `src` of another commit")
    parser.add_argument("--keep", type=Path, help="write the folded stacks here")
    return parser.parse_args()


def _py_spy() -> Path | None:
    """Return py-spy, installed if missing; None if that fails."""
    program = _TOOLS / "bin" / "py-spy"
    if not program.exists():
        command = (sys.executable, "-m", "pip", "install", "-q", "--target", str(_TOOLS), "py-spy")
        try:
            subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)
        except subprocess.SubprocessError:
            return None
    return program


def _load(server: Server, args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    flags = {"topic": "bench", "conns": args.conns, "window": args.window}
    if args.what == "pull":
        return server.load("pull", **flags, warm=f"{_WARM_S}s", dur=f"{seconds}s")
    batch = 32 if args.what == "batch" else 1
    return server.load(
        "send", **flags, size=args.size, batch=batch, warm=f"{_WARM_S}s", dur=f"{seconds}s"
    )


def _times(server: Server) -> tuple[float, float]:
    """Return the user and kernel CPU time of the broker so far, in seconds."""
    text = Path(f"/proc/{server.pids[0]}/stat").read_text()
    words = text.rpartition(")")[2].split()
    return int(words[11]) / _TICKS, int(words[12]) / _TICKS


def _beside_load(
    server: Server, args: argparse.Namespace, seconds: float, watch: Callable[[], None]
) -> dict[str, Any]:
    """Load the broker, run `watch` during the measurement, and return the report."""
    reports: list[dict[str, Any]] = []
    load = threading.Thread(target=lambda: reports.append(_load(server, args, seconds)))
    load.start()
    time.sleep(_WARM_S + _SETTLE_S)
    watch()
    load.join()
    return reports[0]


def _sampled(server: Server, args: argparse.Namespace, program: Path, out: Path) -> bool:
    """Record folded stacks with py-spy to `out` under load; return False if it cannot attach."""
    seconds = max(1, int(args.seconds))
    command = [
        *(str(program), "record", "--pid", str(server.pids[0]), "--output", str(out)),
        *("--format", "raw", "--rate", str(_RATE), "--duration", str(seconds)),
        *("--function", "--full-filenames", *(() if args.no_native else ("--native",))),
    ]
    ended: list[subprocess.CompletedProcess[str]] = []
    _beside_load(
        server,
        args,
        seconds + 2 * _SETTLE_S,
        lambda: ended.append(
            subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        ),
    )
    return ended[0].returncode == 0 and out.exists()


def _calls(server: Server, args: argparse.Namespace, out: Path) -> str:
    """Return the broker's system calls per message under load, counted by strace, as text."""

    def trace() -> None:
        command = ("strace", "-c", "-f", "-o", str(out), "-p", str(server.pids[0]))
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            time.sleep(_TRACE_S)
            process.send_signal(signal.SIGINT)

    report = _beside_load(server, args, _TRACE_S + 2 * _SETTLE_S, trace)
    traced = report["msgs_per_s"] * _TRACE_S
    rows = []
    for line in out.read_text().splitlines():
        words = line.split()
        if len(words) >= 5 and words[3].isdigit() and words[-1] != "total":
            rows.append(f"  {int(words[3]) / traced:8.3f} {words[-1]}")
    return "\n".join(rows[:12]) if traced else "nothing"


def _print(console: Console, found: Costs, cpu_us: float, rows: int) -> None:
    by_layer = Table("layer", "us/message", "share", title="by layer, with the kernel separate")
    for name, cost_us in _largest(found.layers):
        by_layer.add_row(name, f"{cost_us:.2f}", f"{cost_us / cpu_us:.1%}")
    console.print(by_layer)
    by_function = Table("function", "us/message", "share", "with callees")
    for name, cost_us in _largest(found.own)[:rows]:
        below = f"{found.below[name]:.2f}" if name in found.below else ""
        by_function.add_row(name, f"{cost_us:.2f}", f"{cost_us / cpu_us:.1%}", below)
    console.print(by_function)
    console.print(f"{found.samples} samples; sleeping threads:", dict(found.waits.most_common(5)))
    if KERNEL not in found.layers:
        console.print("Kernel time is included in the functions that called it.")


def _largest(costs_us: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(costs_us.items(), key=lambda each: -each[1])


def _profile(args: argparse.Namespace, home: Path, console: Console) -> None:
    program, out = (None if args.within else _py_spy()), args.keep or home / "stacks"
    sampler = () if program else (str(Path(__file__).with_name("stack_sampler.py")), str(out))
    python = str(bare_install.PYTHON) if args.bare else sys.executable
    server = start_kourou(home, args.flush, python=python, source=args.source, sampler=sampler)
    try:
        if args.what == "pull":
            server.load("send", topic="bench", conns=64, window=1, count=_FILL, dur="120s")
        Path(f"{out}.go").touch()
        user, kernel = _times(server)
        report = _load(server, args, args.seconds)
        user, kernel = _times(server)[0] - user, _times(server)[1] - kernel
        cpu_us = report["server_cpu_s"] * 1e6 / max(1, report["msgs"])
        console.print(
            f"{args.what}, {args.conns} connections with {args.window} in flight, {args.flush}: "
            f"{report['msgs_per_s']:,.0f} messages/s, p99 {report['lat_us']['p99'] / 1000:.2f} ms, "
            f"{cpu_us:.1f} us CPU per message, {kernel / (user + kernel):.0%} of it in the kernel"
        )
        if program and not _sampled(server, args, program, out):
            console.print("py-spy cannot attach here: run again with --within")
            return
        if shutil.which("strace"):
            console.print(
                "system calls per message:", _calls(server, args, home / "calls"), sep="\n"
            )
    finally:
        server.stop()
    kernel_us = cpu_us * kernel / (user + kernel)
    found = costs(out.read_text().splitlines(), cpu_us - kernel_us, kernel_us)
    _print(console, found, cpu_us, args.rows)


def main() -> None:
    """Profile one kind of load."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped
    args = _parse()
    load_generator.build()
    if args.bare and (reason := bare_install.build()):
        raise SystemExit(reason)
    console = Console()
    console = Console(width=max(console.width, 120))
    with tempfile.TemporaryDirectory(prefix="profile-", dir=load_generator.VAR) as directory:
        _profile(args, Path(directory), console)


if __name__ == "__main__":
    main()
