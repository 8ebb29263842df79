"""Official 5.x clients send and receive again after a kill of the process that serves them."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kourou.blocking import AdminClient
from kourou.testing.process import Serving
from tests.interop.clients import CACHE, Client

TOPIC = "orders"
CLIENTS = ("java", "go", "node", "rust")
MODES = ("local", "cluster", "behind")
"""What is killed: `kourou serve` itself, a proxy before it, or the broker behind a proxy."""
CASES = [case for case in itertools.product(CLIENTS, MODES) if case != ("go", "cluster")]
"""The Go client sends lost settings again every 5 minutes: that takes one test, not two."""
LIMIT_S = 400


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


def restart_proxy(proxy: Serving, directory: Path) -> Serving:
    """Kill `kourou serve proxy`, and start it again on its port."""
    proxy.stop(signal.SIGKILL)
    return Serving.start_proxy(
        proxy.namesrv, directory / "home", "--no-console", port=port_of(proxy.grpc)
    )


def run(client: Client, serving: Serving, restart: Callable[[], Serving]) -> str:
    """Run the client's program, and restart its server when messages have arrived."""
    arguments = (serving.grpc, "plain", "recovering", "recover", TOPIC)
    process = subprocess.Popen(
        [*client.command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=CACHE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with restart():
            out, _ = process.communicate("restarted\n", timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out
    return out


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_client_recovers_without_loss_when_its_server_was_killed(
    name: str, mode: str, programs: dict[str, Client], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(
            Serving.start(tmp_path / "store", "--no-console", grpc=mode == "local")
        )
        with AdminClient(broker.namesrv) as admin:
            admin.create_topic(TOPIC, queues=4, attributes={"message.type": "NORMAL"})
        serving = broker
        if mode != "local":
            serving = stack.enter_context(
                Serving.start_proxy(broker.namesrv, tmp_path / "home", "--no-console")
            )

        def restart() -> Serving:
            if mode == "cluster":
                return restart_proxy(serving, tmp_path)
            return restart_broker(broker, tmp_path)

        printed = run(programs[name], serving, restart)

    assert printed == "recovered\n"
