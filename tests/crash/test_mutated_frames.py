"""A server that gets mutated requests logs no error, holds no memory, and serves other clients.

This is a short run of `python -m bench.hostile`, which also judges a healthy client's latency.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMES = 3_000


@pytest.mark.slow
@pytest.mark.parametrize("port", ["remoting", "grpc"])
def test_thousands_of_mutated_frames_have_no_effect(port: str) -> None:
    # The load of the machine is not known here, so the latency has no limit (--ratio inf).
    options = (
        "--port",
        port,
        "--frames",
        str(FRAMES),
        "--rounds",
        "2",
        "--alone",
        "1",
        "--ratio",
        "inf",
    )

    done = subprocess.run(
        [sys.executable, "-m", "bench.hostile", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    (sent,) = re.findall(r"([0-9,]+) frames on", done.stdout)
    assert int(sent.replace(",", "")) >= FRAMES
