"""Tests of `kourou serve namesrv`, and of servers that stop when their stdin ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.testing.process import Outcome, Serving, run_command

pytestmark = pytest.mark.slow
Command = Callable[..., Outcome]


def test_brokers_join_a_name_server_of_its_own_process(tmp_path: Path, command: Command) -> None:
    with Serving.start_namesrv(tmp_path / "namesrv") as namesrv:
        at = ("-n", namesrv.namesrv)
        with Serving.start(tmp_path / "store", "--namesrv", namesrv.namesrv) as broker:
            sent = command("send", "orders", "x", *at)
            listed = json.loads(command("cluster", "list", "--json", *at).out)

            assert sent.code == 0
            assert [line["address"] for line in listed] == [broker.broker]
            assert broker.stop().code == 0
        assert namesrv.stop(signal.SIGTERM).code == 0


def test_key_value_configuration_survives_a_restart(tmp_path: Path, command: Command) -> None:
    words = ("namesrv", "kv")
    with Serving.start_namesrv(tmp_path) as serving:
        command(*words, "put", "NAMES", "key", "value", "-n", serving.namesrv)
    with Serving.start_namesrv(tmp_path) as serving:
        shown = command(*words, "get", "NAMES", "key", "-n", serving.namesrv)

    assert shown.out == "value\n"


def test_port_in_use_ends_the_start(tmp_path: Path) -> None:
    with Serving.start_namesrv(tmp_path / "a") as serving:
        port = serving.namesrv.rpartition(":")[2]
        outcome = run_command("serve", "namesrv", "--dir", str(tmp_path / "b"), "--port", port)

    assert outcome.code == 3
    assert f"Error: cannot listen on 127.0.0.1:{port}: the port is in use" in outcome.err


@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_server_stops_cleanly_when_its_stdin_ends(tmp_path: Path, server: str) -> None:
    options = {
        "broker": ("serve", "--store", str(tmp_path), "--namesrv-port", "0", "--no-grpc"),
        "namesrv": ("serve", "namesrv", "--dir", str(tmp_path)),
    }
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "kourou.cli.main", *options[server], "--port", "0"),
            *("--no-tls", "--ready-json", "--stop-at-eof"),
        ],
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    os.close(reading)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"] is True
        assert process.poll() is None
        os.close(writing)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
    assert not (tmp_path / "abort").exists()
