"""Official 5.x clients send and receive again after a kill of the process that serves them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from kourou.blocking import AdminClient
from kourou.testing.process import Serving
from tests.interop.clients import CACHE, Client

TOPIC = "orders"
MODES = ("local", "cluster", "shared", "behind")
"""What is killed: `kourou serve` itself, a proxy before it, one of two that share a port, or the
broker behind a proxy."""
LIMIT_S = 400
"""The Go client sends lost settings again only every 5 minutes."""


def port_of(address: object) -> int:
    return int(str(address).rpartition(":")[2])


def restart_broker(broker: Serving, directory: Path) -> Serving:
    """Kill `kourou serve`, and start it again on its ports."""
    grpc = ("--grpc-port", str(port_of(broker.grpc))) if broker.ready["grpc"] else ()
    broker.stop(signal.SIGKILL)
    return Serving.start(
        directory / "store",
        *("--no-console", *grpc),
        port=port_of(broker.broker),
        namesrv_port=port_of(broker.namesrv),
        grpc=bool(grpc),
    )


def start_proxy(namesrv: str, directory: Path, port: int = 0) -> Serving:
    options = ("--no-console", "--reuse-port")
    return Serving.start_proxy(namesrv, directory / "home", *options, port=port)


def restart_proxy(proxy: Serving, directory: Path) -> Serving:
    """Kill `kourou serve proxy`, and start it again on its port."""
    proxy.stop(signal.SIGKILL)
    return start_proxy(proxy.namesrv, directory, port_of(proxy.grpc))


def start(client: Client, name: str, serving: Serving) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*client.command, serving.grpc, "plain", f"recovering-{name}", "recover", TOPIC],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=CACHE,
    )


def run(
    programs: Mapping[str, Client], serving: Serving, restart: Callable[[], Serving]
) -> dict[str, str]:
    """Run all clients' programs, restart their server when messages have arrived at each.

    Returns:
        The last line of each.
    """
    running = {name: start(client, name, serving) for name, client in programs.items()}
    try:
        for process in running.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        with restart():
            for process in running.values():
                assert process.stdin is not None
                process.stdin.write("restarted\n")
                process.stdin.flush()
            return {
                name: process.communicate(timeout=LIMIT_S)[0] for name, process in running.items()
            }
    finally:
        for process in running.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("mode", MODES)
def test_clients_recover_without_loss_when_their_server_was_killed(
    mode: str, programs: dict[str, Client], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(
            Serving.start(tmp_path / "store", "--no-console", grpc=mode == "local")
        )
        with AdminClient(broker.namesrv) as admin:
            admin.create_topic(TOPIC, queues=4, attributes={"message.type": "NORMAL"})
        serving = broker
        if mode != "local":
            serving = stack.enter_context(start_proxy(broker.namesrv, tmp_path))
        if mode == "shared":
            port = port_of(serving.grpc)
            stack.enter_context(start_proxy(broker.namesrv, tmp_path, port))

        def restart() -> Serving:
            if mode in ("cluster", "shared"):
                return restart_proxy(serving, tmp_path)
            return restart_broker(broker, tmp_path)

        printed = run(programs, serving, restart)

    assert printed == dict.fromkeys(programs, "recovered\n")
