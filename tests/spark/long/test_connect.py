"""Tests of Spark Connect: a client without Java uses the data source of a server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.errors import UsageError
from kourou.model.message import Message
from kourou.spark.sessions import local_session
from tests.held_ports import held_ports
from tests.spark import deployed
from tests.spark.conftest import Publish
from tests.spark.page_programs import located, programs

PROGRAM = Path(__file__).with_name("connect_job.py")
MESSAGES = 1_000


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """Address of a Spark Connect server, a process of its own."""
    environ = deployed.spark_environment(tmp_path)
    with held_ports(1) as [port], (tmp_path / "server.log").open("w") as log:
        settings = {
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        process = subprocess.Popen(
            [
                f"{environ['SPARK_HOME']}/bin/spark-submit",
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--master", "local[2]"),
                *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
                "spark-internal",
            ],
            cwd=tmp_path,
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,  # its workers end with it
        )
        try:
            wait_until_listening(process, port)
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    never = threading.Event()
    for _ in range(deployed.TIMEOUT_S * 10):
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        assert process.poll() is None, "the server ended"
        never.wait(0.1)
    raise AssertionError("the server does not listen")


@pytest.mark.spark
@pytest.mark.slow
def test_client_of_spark_connect_reads_streams_and_writes(
    remote: str, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("connect-copy", b"0")])  # creates the topic
    publish([Message("connect", b"%d" % number, tags="eu") for number in range(1, MESSAGES)])

    environ = deployed.client_environment()
    words = [sys.executable, str(PROGRAM), remote, namesrv, "connect", "connect-copy"]
    deployed.run([*words, str(tmp_path)], environ, tmp_path)

    program = programs("clusters.md")["Spark Connect"].replace("sc://localhost:15002", remote)
    program = located(program, namesrv, "connect", tmp_path)
    assert "|  eu|  999|" in deployed.run([sys.executable, "-c", program], environ, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["found_by_name"] == result["streamed"] == MESSAGES - 1
    assert result["is_active"]
    assert result["partitions"] == "3"
    assert "unknown option 'topik': did you mean topic?" in result["error"]
    assert result["written"] == list(range(MESSAGES))


def test_session_beside_a_configured_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example:15002")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)

    with pytest.raises(UsageError, match=r"SPARK_REMOTE is 'sc://spark.example:15002'"):
        local_session()
