"""Death of the executor that runs a task."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path


def kill_executor() -> None:
    """Kill the JVM of this Python worker's executor, then the worker itself (Linux only)."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()  # of the worker's daemon
    found = re.search(r"^PPid:\t(\d+)$", status, re.MULTILINE)
    assert found is not None
    jvm = int(found[1])
    assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{jvm}/cmdline").read_text()
    os.kill(jvm, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
