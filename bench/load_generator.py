"""The load generator `mqload` (Go, bench/load): built once, run with a mode, read as JSON."""

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
"""Of one core, by everything that is neither generator nor server; threads of the kernel that write
back what a server wrote are among it."""
STEAL_SHARE_MAX: Final = 0.04
"""Of one core, kept back by the hypervisor."""

Report = Mapping[str, Any]


def build() -> None:
    """Compile the generator if its binary is missing or older than its source.

    Raises:
        SystemExit: there is no Go.
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
    """Run one mode of the generator; return the JSON object it printed.

    Raises:
        RuntimeError: it failed, or an answer was not a success.
    """
    result = attempt(mode, **flags)
    if has_refused(result):
        raise RuntimeError(f"mqload {mode}: {result['errors']} errors, codes {result.get('codes')}")
    return result


def attempt(mode: str, **flags: object) -> dict[str, Any]:
    """Do the same, and let answers pass that were no success; rates do not count them.

    Raises:
        RuntimeError: it failed.
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
        said = (done.stdout + done.stderr)[-500:]
        raise RuntimeError(f"mqload {mode} ended with {done.returncode}: {said}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def has_refused(report: Report) -> bool:
    """Tell whether the server answered something else than success."""
    return bool(report.get("errors"))


def is_alone(report: Report) -> bool:
    """Tell whether generator and server had the machine to themselves in the measured part."""
    seconds = report.get("secs")
    if not seconds:
        return True
    other, steal = report["other_cpu_s"] / seconds, report["steal_s"] / seconds
    return bool(other <= OTHER_CPU_SHARE_MAX and steal <= STEAL_SHARE_MAX)
