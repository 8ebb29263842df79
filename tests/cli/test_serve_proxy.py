"""Tests of `kourou serve proxy`: start, stop, ports, name servers that are away, metrics."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kourou.testing.process import Outcome, Serving, run_command, start_command
from tests.proxy.grpc_client import METHODS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving.start(tmp_path_factory.mktemp("store"), "--no-console") as serving:
        yield serving


def refused(namesrv: str, home: Path, *options: str) -> Outcome:
    """Return the outcome of a proxy that does not start."""
    return run_command(
        *("serve", "proxy", "--name-server", namesrv, "--no-remoting", *options),
        environ={"KOUROU_PROXY_HOME": str(home)},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_proxy_is_ready_and_stops_at_a_signal(
    broker: Serving, tmp_path: Path, number: signal.Signals
) -> None:
    with Serving.start_proxy(broker.namesrv, tmp_path) as proxy:
        assert next(iter(proxy.ready)) == "ready"
        assert proxy.ready["pid"] == proxy.process.pid
        assert proxy.ready["namesrv"] == broker.namesrv
        assert Path(str(proxy.ready["certificate"])).is_file()
        outcome = proxy.stop(number)
    assert (outcome.code, outcome.err) == (0, "")


def test_port_in_use_is_named(broker: Serving, tmp_path: Path) -> None:
    with Serving.start_proxy(broker.namesrv, tmp_path) as proxy:
        outcome = refused(broker.namesrv, tmp_path, "--grpc-port", proxy.grpc.rpartition(":")[2])
    assert outcome.code == 3
    assert proxy.grpc in outcome.err


def test_processes_share_a_port_if_all_ask_for_it(broker: Serving, tmp_path: Path) -> None:
    with Serving.start_proxy(broker.namesrv, tmp_path, "--reuse-port") as first:
        port = int(first.grpc.rpartition(":")[2])
        with Serving.start_proxy(broker.namesrv, tmp_path, "--reuse-port", port=port) as second:
            assert second.grpc == first.grpc
            assert refused(broker.namesrv, tmp_path, "--grpc-port", str(port)).code == 3


def test_unreachable_name_server_is_waited_for_and_named_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = start_command(
        *("serve", "proxy", "-n", f"127.0.0.1:{port}", "--grpc-port", "0", "--no-tls"),
        *("--no-remoting", "--ready-json", "--log-level", "warning"),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        with Serving.start(tmp_path, "--no-console", namesrv_port=port):
            assert process.stdout.readline().startswith('{"ready": true')
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    assert said.startswith("waiting for a name server: no name server answered")
    assert (process.returncode, rest) == (0, "")


def test_signal_ends_the_wait_for_a_name_server() -> None:
    process = start_command(
        *("serve", "proxy", "-n", "127.0.0.1:9", "--grpc-port", "0", "--no-tls", "--no-remoting")
    )
    assert process.stderr is not None
    try:
        while "waiting" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0


def test_broker_instead_of_a_name_server_is_refused(broker: Serving, tmp_path: Path) -> None:
    outcome = refused(broker.broker, tmp_path, "--grpc-port", "0")
    assert outcome.code != 0
    assert "is no name server" in outcome.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--grpc-advertise", "proxy:0"), "grpc_advertise: clients cannot connect to port 0"),
        (("--grpc-advertise", "0.0.0.0:8081"), "grpc_advertise: 0.0.0.0 is a wildcard address"),
        (
            ("--reuse-port", "--grpc-port", "8080"),
            "grpc_server_port and remoting_listen_port are both 8080",
        ),
    ],
)
def test_address_that_clients_cannot_use_is_refused(options: tuple[str, ...], named: str) -> None:
    outcome = run_command("serve", "proxy", *options)
    assert outcome.code == 2
    assert named in outcome.err


def test_option_of_the_broker_before_the_word_proxy_is_refused() -> None:
    outcome = run_command("serve", "--port", "0", "proxy")
    assert outcome.code == 2
    assert "--port is before proxy" in outcome.err


def test_remoting_port_in_use_is_named_and_grpc_is_served(broker: Serving, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Serving.start_proxy(broker.namesrv, tmp_path, remoting_port=port) as proxy:
            assert proxy.ready["remoting"] is None
            outcome = proxy.stop()
    assert outcome.code == 0
    expected = f"warning: remoting clients are not served: cannot listen on 127.0.0.1:{port}"
    assert outcome.err.startswith(expected)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - http
        text: str = answer.read().decode()
        return text


def test_metrics_count_calls_by_name_language_and_code(broker: Serving, tmp_path: Path) -> None:
    with Serving.start_proxy(broker.namesrv, tmp_path, "--no-remoting") as proxy:
        with grpc.insecure_channel(proxy.grpc, [("grpc.enable_http_proxy", 0)]) as channel:
            call: Any = channel.unary_unary(METHODS["QueryRoute"].path)
            fields = (("x-mq-client-id", "c"), ("x-mq-language", "GO"))
            call(b"", timeout=60, metadata=fields)
        metrics = read(f"{proxy.ready['console']}/metrics")
        assert read(f"{proxy.ready['console']}/readyz").startswith('{"status": "ok"')
    lines = [line for line in metrics.splitlines() if line.startswith("rocketmq_proxy_")]
    up, counted = sorted(lines, reverse=True)
    where = 'cluster="DefaultCluster",node_id=".+",node_type="proxy",proxy_mode="cluster"'
    assert re.fullmatch(rf"rocketmq_proxy_up{{{where}}} 1\.0", up)
    about = r'.*code="illegal_topic",.*language="go",.*name="QueryRoute",.*} 1\.0'
    assert re.fullmatch("rocketmq_proxy_calls_total{" + about, counted), counted


def test_proxy_that_waits_for_a_name_server_is_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = start_command(
        *("serve", "proxy", "-n", "127.0.0.1:9", "--grpc-port", "0", "--no-remoting"),
        *("--no-tls", "--console-port", str(port)),
    )
    assert process.stderr is not None
    try:
        while "waiting" not in process.stderr.readline():
            pass
        with pytest.raises(urllib.error.HTTPError) as caught:
            read(f"http://127.0.0.1:{port}/readyz")
        reasons = json.loads(caught.value.read())["reasons"]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert (caught.value.code, reasons) == (503, ["no name server has answered"])


def test_proxy_without_console_reports_no_address(broker: Serving, tmp_path: Path) -> None:
    options = ("--no-console", "--no-remoting", "--no-tls")
    with Serving.start_proxy(broker.namesrv, tmp_path, *options) as proxy:
        assert proxy.ready["console"] is None


def test_commands_work_through_the_remoting_port(broker: Serving, tmp_path: Path) -> None:
    with Serving.start_proxy(broker.namesrv, tmp_path) as proxy:
        created = run_command("topic", "create", "remoting", "-n", broker.namesrv)
        assert created.code == 0, created.err
        sent = run_command("send", "remoting", "hello", "-n", proxy.remoting)
        assert sent.code == 0, sent.err
        received = run_command(
            *("receive", "remoting", "--from", "earliest", "--count", "1", "-n", proxy.remoting)
        )
    assert [row["body"] for row in received.rows] == ["hello"]
