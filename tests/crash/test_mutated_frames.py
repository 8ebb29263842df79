"""Peers that send mutated requests: the server logs no error, keeps nothing, and serves others.

The small form of `python -m bench.hostile`, which also holds a healthy client's latency to account.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMES = 20_000


@pytest.mark.slow
def test_thousands_of_mutated_frames_leave_no_trace() -> None:
    # Other tests may run beside this one: the latency is not judged closely here.
    options = ("--frames", str(FRAMES), "--rounds", "4", "--alone", "1", "--ratio", "100")

    done = subprocess.run(
        [sys.executable, "-m", "bench.hostile", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{FRAMES:,} frames on" in done.stdout
