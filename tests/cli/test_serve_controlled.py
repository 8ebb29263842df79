"""`kourou serve` in controller mode without a controller."""

from __future__ import annotations

import signal
from pathlib import Path

from kourou.testing.process import run_command, start_command
from tests.held_ports import held_ports

MODE = "KOUROU_BROKER_ENABLE_CONTROLLER_MODE"


def test_a_broker_without_an_id_tells_what_it_waits_for_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    with held_ports(2) as (port, nobody):
        environ = {MODE: "true", "KOUROU_BROKER_CONTROLLER_ADDR": f"127.0.0.1:{nobody}"}
        process = start_command(
            *("serve", "--store", str(tmp_path), "--port", str(port), "--namesrv-port", "0"),
            *("--no-console", "--log-level", "error"),
            environ=environ,
        )
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert "waiting for a controller to assign an id: no controller leads" in line
    assert process.returncode == 0


def test_controller_mode_needs_a_controller_and_an_address(tmp_path: Path) -> None:
    serve = ("serve", "--store", str(tmp_path), "--no-console", "--namesrv-port", "0")
    alone = run_command(*serve, "--port", "0", environ={MODE: "true"})
    assert (alone.code, "must name a controller" in alone.err) == (2, True)

    environ = {MODE: "true", "KOUROU_BROKER_CONTROLLER_ADDR": "127.0.0.1:1"}
    free = run_command(*serve, "--port", "0", environ=environ)
    assert (free.code, "port is 0; in controller mode" in free.err) == (2, True)

    wide = run_command(*serve, "--port", "21911", "--listen", "0.0.0.0", environ=environ)  # noqa: S104
    assert (wide.code, "set advertise" in wide.err) == (2, True)
