"""One Java server and one Kourou server for all interop tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.interop.peer import JavaServer, class_path, free_broker_port, free_port, start_java


@dataclass(frozen=True)
class Side:
    """Where a server is; what the tests need to know of it."""

    namesrv_addr: str
    broker_addr: str


@pytest.fixture(scope="session")
def jars() -> str:
    return class_path()


@pytest.fixture(scope="session")
def java_server(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    server = start_java(jars, tmp_path_factory.mktemp("java"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kourou_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    home = tmp_path_factory.mktemp("kourou")
    config = home / "broker.conf"
    config.write_text("messageDelayLevel=1s 1s 1s 1s 1s 1s\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "kourou.cli.main", "serve", "--ready-json"),
            *("--store", str(home / "store"), "--config", str(config)),
            *("--port", str(free_broker_port()), "--namesrv-port", str(free_port())),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield Side(ready["namesrv"], ready["broker"])
        process.terminate()
        assert process.wait(10) == 0
    check = [sys.executable, "-m", "kourou.cli.main", "store", "check", str(home / "store")]
    assert subprocess.run(check, check=False).returncode == 0
