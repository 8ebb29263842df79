"""Description of the machine, the commit and the versions of a measurement."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from bench.load_generator import ROOT


def describe() -> dict[str, object]:
    """Return the description for the results."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "build": python_build(str(sysconfig.get_config_var("CONFIG_ARGS") or ""), sys.base_prefix),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "src")),
        "versions": {name: _version(name) for name in ("msgspec", "uvloop", "isal")},
        "java": _first_line("java", "-version"),
        "go": _first_line("go", "version"),
    }


def python_build(config_args: str, prefix: str) -> str:
    """Return the build options of the interpreter; PGO and LTO make it 4-14 % faster.

    Args:
        config_args: sysconfig's CONFIG_ARGS, the options of CPython's `configure`.
        prefix: installation prefix of the interpreter.
    """
    if prefix == "/usr":  # Debian's CONFIG_ARGS are those of the build of the shared library
        return "the system's (Debian builds with PGO and LTO)"
    has_pgo = "--enable-optimizations" in config_args
    has_lto = "--with-lto" in config_args and "--with-lto=no" not in config_args
    return ", ".join(("PGO" if has_pgo else "no PGO", "LTO" if has_lto else "no LTO"))


def touch_memory(size: int) -> None:
    """Write to `size` bytes of memory, at most to half of what is free, and release it.

    A virtual machine gets each page from its host when it writes to it for the first time. On the
    machine of the figures this takes 9 us a page, which is 3 us for a message of 1 KB in the log.
    A server that has run for some time does not pay it.
    """
    pages = min(size // mmap.PAGESIZE, os.sysconf("SC_AVPHYS_PAGES") // 2)
    if pages <= 0:
        return
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1


def line(found: Mapping[str, object]) -> str:
    """Return the parts of a description that influence figures, in one line."""
    python = f"Python {found['python']} ({found['build']})"
    return f"{found['cpu']}, {found['cores']} cores, kernel {found['kernel']}, {python}"


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


def _first_line(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return (done.stdout + done.stderr).splitlines()[0]
