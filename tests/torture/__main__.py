"""Runs the fault tests; the exit code is 0 if every figure is within its limit, else 1.

python -m tests.torture                              all tests at full size (3 hours)
python -m tests.torture --only power,torn --seeds 500
python -m tests.torture --only power --seed 4711 --seeds 1    one seed only
python -m tests.torture --only replicas --rounds 20 --longest 10 --keep DIR    logs in DIR
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.torture import (
    config_files,
    flips,
    kills,
    power,
    seam_errors,
    shim_errors,
    small_disk,
    torn,
)
from tests.torture.chaos import lost_acks, modes
from tests.torture.chaos import run as chaos
from tests.torture.figures import FAILURES_SHOWN, Figure, Size
from tests.torture.replicas import run as replicas

FAULTS: Final[dict[str, Callable[[Size], list[Figure]]]] = {
    "kill": kills.run,
    "chaos": chaos.run,
    "acks": lost_acks.run,
    "modes": modes.run,
    "power": power.run,
    "torn": torn.run,
    "flips": flips.run,
    "config": config_files.run,
    "errors": lambda size: seam_errors.run(size) + shim_errors.run(size),
    "tmpfs": small_disk.run,
    "replicas": replicas.run,
}

SIZES: Final = (
    *("cycles", "seeds", "places", "calls", "stride", "seconds", "messages", "rounds", "longest"),
    *("java", "keep", "jobs"),
)
"""Options that are fields of `Size`."""


def main() -> int:
    """Return the exit code."""
    arguments = _parser().parse_args()
    names = arguments.only.split(",") if arguments.only else list(FAULTS)
    unknown = set(names) - set(FAULTS)
    if unknown:
        _say(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
        return 2
    given = {name: value for name in SIZES if (value := getattr(arguments, name)) is not None}
    size = Size(seed=arguments.seed, say=_say, **given)
    _say(f"seed {size.seed}: {', '.join(names)}")
    figures: list[Figure] = []
    for name in names:
        began_s = time.perf_counter()
        figures += FAULTS[name](size)
        _say(f"{name}: {time.perf_counter() - began_s:.0f} s")
    return show(figures)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", help=f"some of {','.join(FAULTS)}")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--cycles", type=int, help="kills with -9 (200)")
    parser.add_argument("--seeds", type=int, help="power losses in each mode (10,000)")
    parser.add_argument("--places", type=int, help="bits flipped (1,000)")
    parser.add_argument("--calls", type=int, help="errors in calls 1 to CALLS (200)")
    parser.add_argument("--stride", type=int, help="with the shim, only every STRIDE-th call (1)")
    parser.add_argument("--seconds", type=int, help="seconds of chaos (1,500)")
    parser.add_argument("--messages", type=int, help="messages during changes of mode (10,000)")
    parser.add_argument("--rounds", type=int, help="faults of replicas (200)")
    parser.add_argument("--longest", type=float, help="longest fault of replicas in seconds (60)")
    parser.add_argument("--java", action="store_true", help="with a Java client for replicas")
    parser.add_argument("--keep", help="directory for stores and logs of chaos and replicas")
    parser.add_argument("--jobs", type=int, help="processes for simulations (all cores)")
    return parser


def show(figures: Sequence[Figure]) -> int:
    """Print the table and the failures, and return the exit code."""
    table = Table()
    table.add_column("fault")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("limit", justify="right")
    table.add_column("held")
    for figure in figures:
        held = "yes" if figure.held else "NO"
        table.add_row(figure.fault, figure.name, figure.value, figure.limit, held)
    Console(width=120).print(table)
    for figure in figures:
        for failure in figure.failures[:FAILURES_SHOWN]:
            _say(f"{figure.fault}, {figure.name}: {failure}")
        if len(figure.failures) > FAILURES_SHOWN:
            _say(f"... and {len(figure.failures) - FAILURES_SHOWN:,} more")
    return 0 if all(figure.held for figure in figures) else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
