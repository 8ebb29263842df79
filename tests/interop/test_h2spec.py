"""Conformance of the gRPC port to HTTP/2: all cases of h2spec, also the strict ones."""

from __future__ import annotations

import asyncio
import re
import subprocess

from tests.http2.echo_server import Served
from tests.interop.clients import h2spec

CASES = 146


def test_all_cases_of_h2spec_pass() -> None:
    with Served().running(asyncio.run) as served:
        command = (*h2spec(), "-h", "127.0.0.1", "-p", str(served.port), "-o", "10", "--strict")
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    summary = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    assert summary is not None, done.stdout + done.stderr
    assert [int(number) for number in summary.groups()] == [CASES, CASES, 0, 0], done.stdout
