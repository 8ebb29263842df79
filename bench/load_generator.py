"""The load generators `mqload` (Go, in bench/load; for gRPC `mqload-grpc`, in bench/load_grpc).

Each run prints a JSON report.
"""

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
GRPC_BINARY: Final = VAR / "mqload-grpc"
_SOURCES: Final = {BINARY: ROOT / "bench" / "load", GRPC_BINARY: ROOT / "bench" / "load_grpc"}
RUN_SECONDS: Final = 600

OTHER_CPU_SHARE_MAX: Final = 0.1
"""Maximum CPU of other programs, as a share of one core. It includes kernel threads that write back
the server's data."""
STEAL_SHARE_MAX: Final = 0.04
"""Maximum CPU stolen by the hypervisor, as a share of one core."""

Report = Mapping[str, Any]


def build(binary: Path = BINARY) -> None:
    """Compile a generator if its binary is missing or older than its source.

    Raises:
        SystemExit: Go is not installed.
    """
    directory = _SOURCES[binary]
    newest = max(source.stat().st_mtime for source in directory.rglob("*.go"))
    if binary.exists() and binary.stat().st_mtime >= newest:
        return
    if shutil.which("go") is None:
        raise SystemExit("the benchmarks' load generator needs Go on the PATH")
    binary.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=directory, check=True)


def run(mode: str, **flags: object) -> dict[str, Any]:
    """Run one mode of `mqload`; return its report.

    Raises:
        RuntimeError: it failed, or an answer was not a success.
    """
    return _accepted(BINARY, mode, attempt(mode, **flags))


def run_grpc(mode: str, **flags: object) -> dict[str, Any]:
    """Run one mode of `mqload-grpc`, which is built if necessary; return its report.

    Raises:
        RuntimeError: it failed, or an answer was not a success.
    """
    build(GRPC_BINARY)
    return _accepted(GRPC_BINARY, mode, _attempt(GRPC_BINARY, mode, flags))


def attempt(mode: str, **flags: object) -> dict[str, Any]:
    """Run one mode like `run`, but accept failed answers, which the rates do not count.

    Raises:
        RuntimeError: the generator failed.
    """
    return _attempt(BINARY, mode, flags)


def _attempt(binary: Path, mode: str, flags: Mapping[str, object]) -> dict[str, Any]:
    words = [f"-{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        [str(binary), mode, *words],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        reported = (done.stdout + done.stderr)[-500:]
        raise RuntimeError(f"{binary.name} {mode} exited with {done.returncode}: {reported}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _accepted(binary: Path, mode: str, report: dict[str, Any]) -> dict[str, Any]:
    if has_refused(report):
        told = {name: report.get(name) for name in ("errors", "codes", "error_sample")}
        raise RuntimeError(f"{binary.name} {mode}: {told}")
    return report


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
