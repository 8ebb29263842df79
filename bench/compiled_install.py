"""This tree with its compiled modules (hatch_build.py), in var/bench/compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from bench.load_generator import ROOT, VAR

SOURCE: Final = VAR / "compiled"
"""The packages, which the interpreter of this environment imports instead of `src`."""
_BUILD_SECONDS: Final = 300


def build(directory: Path = SOURCE) -> str | None:
    """Unpack the compiled wheel of the present tree; return the reason of a failure, or None."""
    shutil.rmtree(directory, ignore_errors=True)
    environ = {**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"}
    with tempfile.TemporaryDirectory() as wheels:
        words = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels)
        try:
            done = subprocess.run(
                words,
                cwd=ROOT,
                env=environ,
                timeout=_BUILD_SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"its modules could not be compiled: {error}"
        if done.returncode:
            return f"its modules could not be compiled: {done.stderr.strip()[-300:]}"
        [wheel] = Path(wheels).glob("kourou-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory)
    return None
