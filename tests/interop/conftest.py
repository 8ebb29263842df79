"""One Java server and one Kourou server for all interop tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kourou.testing.process import Serving, run_command
from tests.interop.peer import JavaServer, class_path, start_java


@pytest.fixture(scope="session")
def jars() -> str:
    return class_path()


@pytest.fixture(scope="session")
def java_server(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    server = start_java(jars, tmp_path_factory.mktemp("java"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kourou_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("kourou")
    config = home / "broker.conf"
    config.write_text("messageDelayLevel=1s 1s 1s 1s 1s 1s\n")
    with Serving.start(home / "store", "--config", str(config)) as serving:
        yield serving
        assert serving.stop().code == 0
    assert run_command("store", "check", str(home / "store")).code == 0
