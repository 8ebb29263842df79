"""The load generator `mqload` (Go, in bench/load): build, run, and parse its JSON report."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
VAR: Final = ROOT / "var" / "bench"
BINARY: Final = VAR / "mqload"
RUN_SECONDS: Final = 600

OTHER_CPU_SHARE_MAX: Final = 0.1
"""Maximum CPU of other programs, as a share of one core. It includes kernel threads that write back
the server's data."""
STEAL_SHARE_MAX: Final = 0.04
"""Maximum CPU stolen by the hypervisor, as a share of one core."""

Report = Mapping[str, Any]


def build() -> None:
    """Compile the generator if its binary is missing or older than its source.

    Raises:
        SystemExit: Go is not installed.
    """
    sources = [*(ROOT / "bench" / "load").rglob("*.go")]
    newest = max(source.stat().st_mtime for source in sources)
    if BINARY.exists() and BINARY.stat().st_mtime >= newest:
        return
    if shutil.which("go") is None:
        raise SystemExit("the benchmarks' load generator needs Go on the PATH")
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", str(BINARY), "."], cwd=ROOT / "bench" / "load", check=True)


def run(mode: str, **flags: object) -> dict[str, Any]:
    """Run one mode of the generator; return its report.

    Raises:
        RuntimeError: it failed, or an answer was not a success.
    """
    result = attempt(mode, **flags)
    if has_refused(result):
        raise RuntimeError(f"mqload {mode}: {result['errors']} errors, codes {result.get('codes')}")
    return result


def attempt(mode: str, **flags: object) -> dict[str, Any]:
    """Run one mode like `run`, but accept failed answers, which the rates do not count.

    Raises:
        RuntimeError: the generator failed.
    """
    words = [f"-{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        [str(BINARY), mode, *words],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        reported = (done.stdout + done.stderr)[-500:]
        raise RuntimeError(f"mqload {mode} exited with {done.returncode}: {reported}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def has_refused(report: Report) -> bool:
    """Return whether the server refused requests."""
    return bool(report.get("errors"))


def is_alone(report: Report) -> bool:
    """Return whether no other program used the machine during the measurement."""
    seconds = report.get("secs")
    if not seconds:
        return True
    other, steal = report["other_cpu_s"] / seconds, report["steal_s"] / seconds
    return bool(other <= OTHER_CPU_SHARE_MAX and steal <= STEAL_SHARE_MAX)
