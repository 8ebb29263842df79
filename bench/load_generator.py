"""The load generator `mqload` (Go, bench/load): built once, run with a mode, read as JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BINARY = ROOT / "var" / "bench" / "mqload"


def build() -> None:
    """Compile the generator if its binary is missing or older than its source."""
    sources = list((ROOT / "bench" / "load").rglob("*.go"))
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
    words = [f"-{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        [str(BINARY), mode, *words], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"mqload {mode} ended with {done.returncode}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if result.get("errors"):
        raise RuntimeError(f"mqload {mode}: {result['errors']} errors, codes {result.get('codes')}")
    return result
