"""Fixtures: one Java server and one Kourou server for all interop tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou import SubscriptionGroup
from kourou.blocking import AdminClient
from kourou.spark.sessions import local_session
from kourou.testing.process import Serving, run_command
from tests.interop import clients
from tests.interop.clients import Client
from tests.interop.features import OPTIONS
from tests.interop.peer import JavaServer, start_java

CLIENTS = {
    "java-5.5.0": lambda: clients.java_client("5.5.0"),
    "java-4.9.8": lambda: clients.java_client("4.9.8"),
    "go": clients.go_client,
    "node": clients.node_client,
}

STRICT_OPTIONS = """
autoCreateSubscriptionGroup=false
enablePropertyFilter=true
transactionTimeOut=1500
transactionCheckInterval=1000
transactionOpBatchInterval=200
"""


@pytest.fixture(scope="session")
def jars() -> str:
    return clients.jars("5.5.0")


@pytest.fixture(scope="session")
def java_client() -> Client:
    return clients.java_client("5.5.0")


@pytest.fixture(scope="session", params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> Client:
    """Return each third-party client in turn."""
    return CLIENTS[request.param]()


@pytest.fixture(scope="session")
def programs() -> dict[str, Client]:
    """Return the official 5.x clients."""
    return clients.grpc_clients()


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


@pytest.fixture(scope="session")
def strict_java(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    """Run a Java broker that creates no groups, and has the default one of Spark's reads."""
    server = start_java(jars, tmp_path_factory.mktemp("strict-java"), options=STRICT_OPTIONS)
    try:
        with AdminClient(server.namesrv_addr) as admin:
            for group in ("kourou_spark", "interop-reader"):
                admin.create_group(SubscriptionGroup(group))
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = local_session("kourou-interop", config={"spark.sql.warehouse.dir": warehouse})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["java", "kourou"])
def namesrv_addr(
    request: pytest.FixtureRequest, jars: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the name server of a broker of each kind."""
    home: Path = tmp_path_factory.mktemp("python-features")
    if request.param == "java":
        java = start_java(jars, home, options=OPTIONS)
        yield java.namesrv_addr
        java.stop()
        return
    (home / "broker.conf").write_text(f"messageDelayLevel=1s 1s 1s 1s 1s 1s\n{OPTIONS}")
    with Serving.start(home / "store", "--config", str(home / "broker.conf")) as serving:
        yield serving.namesrv
        assert serving.stop().code == 0
    assert run_command("store", "check", str(home / "store")).code == 0
