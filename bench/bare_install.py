"""Virtual environment with Kourou's core dependencies and no extras, in var/bench/bare."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.load_generator import ROOT, VAR

HOME: Final = VAR / "bare"
PYTHON: Final = HOME / "bin" / "python"
_LOCK: Final = ROOT / "requirements.lock"
_INSTALL_SECONDS: Final = 300
_PINNED: Final = re.compile(r"^[\w.-]+==[^\\\n]+", re.MULTILINE)


def build() -> str | None:
    """Create the environment if the lock file has changed; return the reason of a failure, or None.

    It has the locked versions, and an editable install of this tree.
    """
    built_from, lock = HOME / "made-of.lock", _LOCK.read_text()
    if built_from.exists() and built_from.read_text() == lock:
        return None
    versions = HOME / "versions.txt"
    try:
        _run(sys.executable, "-m", "venv", "--clear", str(HOME))
        versions.write_text("\n".join(match.strip() for match in _PINNED.findall(lock)) + "\n")
        _run(str(PYTHON), "-m", "pip", "install", "-q", "-c", str(versions), "-e", str(ROOT))
    except (OSError, subprocess.SubprocessError) as error:
        return f"its environment could not be created: {error}"
    built_from.write_text(lock)
    return None


def _run(*words: str) -> None:
    subprocess.run(
        words, check=True, timeout=_INSTALL_SECONDS, cwd=Path("/"), stdout=subprocess.DEVNULL
    )
