"""Tests of the process that becomes etcd, with a small program in place of etcd."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kourou.supervising.member_options import ETCD_CHILD
from tests.held_ports import held_ports

SERVER: Final = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"health":"%s"}' % (b"true" if Handler.asked > 1 else b"false"))
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""Is healthy when it is asked for the second time."""
TIMEOUT_S: Final = 60.0


@contextmanager
def running() -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """Start it; yield the process and its first line."""
    with held_ports(1) as ports:
        program = (sys.executable, "-S", "-E", "-c", SERVER, str(ports[0]))
        process = subprocess.Popen(
            [*ETCD_CHILD, f"127.0.0.1:{ports[0]}", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)


def test_etcd_is_announced_when_it_serves_and_stops_when_stdin_ends() -> None:
    with running() as (process, line):
        assert process.stdin is not None
        process.stdin.close()
        code = process.wait(TIMEOUT_S)
        process.stdin = None

    assert json.loads(line)["ready"] is True
    assert code == -signal.SIGTERM


def test_companion_ends_with_a_killed_etcd() -> None:
    with running() as (process, _):
        assert process.stdin is not None
        poll = select.poll()
        poll.register(process.stdin, 0)  # reports that no process can read the pipe any more
        process.kill()
        reported = poll.poll(TIMEOUT_S * 1000)

    assert [event for _, event in reported] == [select.POLLERR]


def test_missing_program_is_named() -> None:
    with subprocess.Popen(
        [*ETCD_CHILD, "127.0.0.1:1", "no-such-etcd"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        code = process.wait(TIMEOUT_S)
        assert process.stderr is not None
        text = process.stderr.read()

    assert (code, text) == (1, "Error: no-such-etcd cannot be run: No such file or directory\n")
