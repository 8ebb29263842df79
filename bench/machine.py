"""Where figures were taken: machine, commit, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from bench.load_generator import ROOT


def describe() -> dict[str, object]:
    """Return what the results name."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "src")),
        "versions": {name: _version(name) for name in ("msgspec", "uvloop", "isal")},
        "java": _said("java", "-version"),
        "go": _said("go", "version"),
    }


def _field(file: str, name: str) -> str:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return "unknown"
    values = (line.split(":", 1)[1].strip() for line in lines if line.startswith(name))
    return next(values, "unknown")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _said(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return (done.stdout + done.stderr).splitlines()[0]
