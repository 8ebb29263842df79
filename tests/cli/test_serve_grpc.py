"""The port of gRPC clients of `kourou serve`: what switches it off, and what does not."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.remoting.network import TcpNetwork, parse_address
from kourou.testing.process import Serving, run_command
from tests.held_ports import held_ports
from tests.proxy.grpc_client import GrpcClient

pytestmark = pytest.mark.slow

WITHOUT = "import sys; sys.modules['{package}'] = None; from kourou.cli.main import main; main()"
FREE = ("--port", "0", "--namesrv-port", "0", "--no-console")
GRPC_PORT = 8081


def code_of_a_route(address: str) -> int:
    """Return the code with which a plain gRPC connection answers for a topic that is missing."""

    async def ask() -> int:
        metadata = {"x-mq-client-id": "c", "x-mq-language": "PYTHON"}
        client = await GrpcClient.connect(TcpNetwork(), parse_address(address), metadata)
        asked = v2.QueryRouteRequest(topic=v2.Resource(name="Missing"))
        code: int = (await client.call("QueryRoute", asked)).status.code
        client.close()
        await asyncio.sleep(0.1)  # the transport ends
        return code

    return asyncio.run(ask())


def start_without(package: str, *options: str) -> subprocess.Popen[str]:
    """Start the command without a package."""
    program = WITHOUT.replace("{package}", package)
    return subprocess.Popen(
        [sys.executable, "-c", program, "serve", *FREE, "--ready-json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("package", ["google.protobuf", "hpack"])
def test_missing_package_switches_grpc_off_and_names_the_extra(
    tmp_path: Path, package: str
) -> None:
    process = start_without(package, "--store", str(tmp_path))
    assert process.stdout is not None
    with Serving(process, json.loads(process.stdout.readline())) as serving:
        assert serving.ready["grpc"] is None
        assert run_command("send", "orders", "x", "-n", serving.namesrv).code == 0
        reported = serving.stop().err
    assert f"warning: gRPC clients are not served: missing packages {package}" in reported
    assert "pip install 'kourou[proxy]'" in reported


def test_missing_package_ends_the_start_if_the_port_was_asked_for(tmp_path: Path) -> None:
    process = start_without("hpack", "--store", str(tmp_path), "--grpc-port", "0")
    _, reported = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pip install 'kourou[proxy]'" in reported
    assert "Traceback" not in reported


def test_busy_port_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    with socket.socket() as busy, held_ports(2) as (port, namesrv_port):
        with suppress(OSError):  # else another process has it
            busy.bind(("127.0.0.1", GRPC_PORT))
        with Serving.start(
            tmp_path, "--no-console", port=port, namesrv_port=namesrv_port, grpc=True
        ) as serving:
            assert serving.ready["grpc"] is None
            assert run_command("send", "orders", "x", "-n", serving.namesrv).code == 0
            reported = serving.stop().err
    assert f"127.0.0.1:{GRPC_PORT}" in reported
    assert "choose another port with --grpc-port" in reported


def test_busy_port_ends_the_start_if_it_was_asked_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        outcome = run_command("serve", "--store", str(tmp_path), *FREE, "--grpc-port", str(port))
    assert outcome.code == 3
    assert f"127.0.0.1:{port}" in outcome.err


def test_plain_clients_are_served_if_no_certificate_can_be_created(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ImportError\n")
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    environ = {"PYTHONPATH": path, "PATH": str(tmp_path)}
    with Serving.start(tmp_path / "store", "--no-console", environ=environ, grpc=True) as serving:
        assert serving.ready["certificate"] is None
        assert code_of_a_route(serving.grpc) == Code.TOPIC_NOT_FOUND
        reported = serving.stop().err
    assert "certificate.not_made" in reported
    assert "topic.not_found" in reported
    assert "kourou topic create Missing" in reported
