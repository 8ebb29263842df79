"""This tree with its compiled modules (hatch_build.py), in var/bench/compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.load_generator import ROOT, VAR

SOURCE: Final = VAR / "compiled"
"""The packages, which the interpreter of this environment imports instead of `src`."""
_BUILD_SECONDS: Final = 300
_PIP: Final = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")


def build(directory: Path = SOURCE) -> str | None:
    """Install the present tree anew; return the reason of a failure, or None."""
    shutil.rmtree(directory, ignore_errors=True)
    words = (*_PIP, "--no-build-isolation", "--target", str(directory), str(ROOT))
    environ = {**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"}
    try:
        subprocess.run(
            words, check=True, timeout=_BUILD_SECONDS, env=environ, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        return f"its modules could not be compiled: {error.stderr.strip()[-300:]}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"its modules could not be compiled: {error}"
    return None
