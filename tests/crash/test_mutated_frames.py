"""Peers that send mutated requests: the server logs no error, keeps nothing, and serves others.

The small form of `python -m bench.hostile`, which also judges a healthy client's latency.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMES = 10_000


@pytest.mark.slow
def test_thousands_of_mutated_frames_leave_no_trace() -> None:
    # What else the machine does is not known here: the latency is judged by the program alone.
    options = ("--frames", str(FRAMES), "--rounds", "4", "--alone", "1", "--ratio", "inf")

    done = subprocess.run(
        [sys.executable, "-m", "bench.hostile", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{FRAMES:,} frames on" in done.stdout
