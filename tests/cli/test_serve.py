"""Tests of `kourou serve`: start, start screen, stop, settings and refusals."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kourou.testing.process import Outcome, Serving, run_command, start_command

pytestmark = pytest.mark.slow
Command = Callable[..., Outcome]
FREE = ("--port", "0", "--namesrv-port", "0")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_ready_json_has_addresses_and_pid(tmp_path: Path) -> None:
    with Serving.start(tmp_path / "store") as serving:
        ready = serving.ready

        assert next(iter(ready)) == "ready"
        assert ready["pid"] == serving.process.pid
        assert ready["store"] == str(tmp_path / "store")
        assert (ready["flush_disk_type"], ready["profile"]) == ("SYNC_FLUSH", "dev")
        for name in ("namesrv", "broker"):
            host, port = str(ready[name]).split(":")
            assert (host, int(port) > 0) == ("127.0.0.1", True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_serve_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with Serving.start(tmp_path) as serving:
        outcome = serving.stop(number)

    assert (outcome.code, outcome.err) == (0, "")
    assert not (tmp_path / "abort").exists()


def test_closed_terminal_stops_serve_cleanly(tmp_path: Path) -> None:
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kourou.cli.main", "serve", "--store", str(tmp_path), *FREE],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(terminal)
    shown = b""
    while not (b"kourou topic list" in shown and shown.endswith(b"\r\n\r\n")):
        shown += os.read(ours, 4096)
    os.close(ours)  # writes to the terminal fail from now on
    for _ in range(2):  # one of the kernel, one of the shell
        process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert "Error" not in err
    assert not (tmp_path / "abort").exists()


def test_serve_goes_on_after_a_hang_up_that_nohup_ignores(tmp_path: Path, command: Command) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the process inherits it
    try:
        serving = Serving.start(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    with serving:
        serving.process.send_signal(signal.SIGHUP)
        assert command("send", "orders", "x", "-n", serving.namesrv).code == 0
        assert serving.stop().code == 0


def test_silent_client_does_not_delay_the_stop(tmp_path: Path) -> None:
    with Serving.start(tmp_path) as serving:
        host, port = serving.broker.split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"\0\0\1\0")
            assert serving.stop().code == 0


def test_start_after_kill_9_recovers_and_reports_it(tmp_path: Path, command: Command) -> None:
    with Serving.start(tmp_path) as serving:
        for number in range(3):
            command("send", "orders", str(number), "-n", serving.namesrv)
        assert serving.stop(signal.SIGKILL).code == -signal.SIGKILL

    with Serving.start(tmp_path) as serving:
        received = command(
            "receive", "orders", "--from", "earliest", "--count", "3", "-n", serving.namesrv
        )
        assert "recovered after a crash" in str(serving.ready["found"])
        assert serving.stop().code == 0

    assert sorted(str(row["body"]) for row in received.rows) == ["0", "1", "2"]
    assert command("store", "check", str(tmp_path)).code == 0


def test_damage_is_reported_at_start_and_consumers_can_skip_it(
    tmp_path: Path, command: Command
) -> None:
    with Serving.start(tmp_path) as serving:
        at = ("-n", serving.namesrv)
        assert command("topic", "create", "t", "--queues", "1", *at).code == 0
        for number in range(3):
            assert command("send", "t", f"body {number}", *at).code == 0
        member = ("receive", "t", "--group", "g", "--from", "earliest")
        first = command(*member, "--count", "1", *at)
        serving.stop()
    log = tmp_path / "commitlog" / "00000000000000000000"
    with log.open("r+b") as file:
        data = file.read(8192)
        file.seek(data.index(b"body 1"))
        file.write(b"B")
    shutil.rmtree(tmp_path / "consumequeue")  # so that recovery reads the whole log

    with Serving.start(tmp_path) as serving:
        (damaged,) = cast(list[dict[str, Any]], serving.ready["damaged"])
        at = ("-n", serving.namesrv)
        held = command("message", "print", "t", *at)
        place = ("--broker", "broker-a", "--queue", "0", "--offset", "2", "--yes")
        moved = command("group", "reset-offset", "g", "t", *place, *at)
        behind = command(*member, "--count", "1", "--timeout", "60", *at)
        reported = command("broker", "set", "broker-a", "skipDamagedRecords=true", *at)
        read = command("message", "print", "t", *at)
        serving.stop()

    assert damaged["file"] == "commitlog/00000000000000000000"
    assert damaged["byte"] < data.index(b"body 1") < damaged["byte"] + damaged["size"]
    assert "checksum" in damaged["reason"]
    assert (held.code, "kourou group reset-offset GROUP TOPIC" in held.err) == (1, True)
    assert (moved.code, reported.code) == (0, 0)
    assert [row["body"] for row in first.rows + behind.rows] == ["body 0", "body 2"]
    assert [row["body"] for row in read.rows] == ["body 0", "body 2"]


def test_start_screen_lists_features_and_next_steps(tmp_path: Path) -> None:
    process = start_command("serve", "--store", str(tmp_path / "store"), *FREE)
    assert process.stdout is not None
    screen: list[str] = []
    while not screen or "topic list" not in screen[-1]:
        screen.append(process.stdout.readline())
        assert screen[-1], "it ended before the screen did"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)

    text = " ".join(" ".join(screen).split())
    assert len(screen) <= 24
    store = f"Store        {tmp_path / 'store'}\n"
    assert store in screen
    assert all(len(line) <= 81 for line in screen if line != store)
    assert " new, " in text
    assert "Acknowledged messages and messages that consumers receive are on disk" in text
    assert "On sends of all kinds, transactions," in text
    assert "Off not supported: web console," in text
    assert 'Next kourou send hello "first message" -n \'127.0.0.1:' in text
    assert rest.strip() == "Stopped; the store is closed."


def test_listening_on_all_addresses_prints_a_warning(tmp_path: Path) -> None:
    with Serving.start(tmp_path, "--listen", "0.0.0.0") as serving:  # noqa: S104  # the case
        outcome = serving.stop()

    assert "open to other machines, without access control" in outcome.err
    assert serving.ready["is_exposed"] is True
    assert serving.namesrv.startswith("127.0.0.1:")


def test_wildcard_listener_returns_the_address_of_each_clients_connection(
    tmp_path: Path, command: Command
) -> None:
    with Serving.start(tmp_path, "--listen", "0.0.0.0") as serving:  # noqa: S104  # the case
        _, _, port = serving.namesrv.rpartition(":")
        _, _, broker_port = serving.broker.rpartition(":")
        for host in ("127.0.0.2", "127.0.0.1"):
            route = command("topic", "route", "TBW102", "--json", "-n", f"{host}:{port}")
            assert f"{host}:{broker_port}" in route.out
            assert command("send", "orders", "x", "-n", f"{host}:{port}").code == 0


def test_async_flush_is_reported(tmp_path: Path) -> None:
    with Serving.start(tmp_path, "--flush", "async") as serving:
        assert serving.ready["flush_disk_type"] == "ASYNC_FLUSH"


def test_serve_joins_a_running_name_server(tmp_path: Path, command: Command) -> None:
    with Serving.start(tmp_path / "a") as first:
        options = ("--namesrv", first.namesrv, "--config", str(tmp_path / "b.conf"))
        (tmp_path / "b.conf").write_text("brokerName=broker-b\n")
        with Serving.start(tmp_path / "b", *options) as second:
            made = command("topic", "create", "orders", "--json", "-n", first.namesrv)

            assert (second.ready["own_namesrv"], second.namesrv) == (False, first.namesrv)
            assert json.loads(made.out)["brokers"] == ["broker-a", "broker-b"]


def test_existing_store_keeps_its_file_sizes(tmp_path: Path) -> None:
    with Serving.start(tmp_path) as serving:
        assert serving.ready["segment_bytes"] == 64 * 1024**2

    with Serving.start(tmp_path, "--profile", "prod") as serving:
        assert serving.ready["segment_bytes"] == 64 * 1024**2


def test_prod_profile_uses_java_sizes(tmp_path: Path) -> None:
    with Serving.start(tmp_path, "--profile", "prod") as serving:
        assert serving.ready["segment_bytes"] == 1024**3


def test_settings_come_from_file_environment_and_options(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(
        f"brokerClusterName=c1\nbrokerName=from-file\nstorePathRootDir={tmp_path / 'x'}\n"
    )
    environ = {"KOUROU_BROKER_BROKER_NAME": "from-environment"}
    process = start_command(
        *("serve", "--config", str(tmp_path / "broker.conf"), *FREE, "--ready-json"),
        environ=environ,
    )
    assert process.stdout is not None
    with Serving(process, json.loads(process.stdout.readline())) as serving:
        assert serving.ready["cluster"] == "c1"
        assert serving.ready["broker_name"] == "from-environment"
        assert serving.ready["store"] == str(tmp_path / "x")


def test_second_broker_on_the_same_store_is_refused(tmp_path: Path) -> None:
    with Serving.start(tmp_path):
        outcome = run_command("serve", "--store", str(tmp_path), *FREE, "--log-level", "error")

    assert outcome.code == 3
    [error] = outcome.err.splitlines()
    assert error.startswith(f"Error: {tmp_path}/lock is locked by another process: stop that")


@pytest.mark.parametrize("which", ["--port", "--namesrv-port"])
def test_taken_port_ends_the_start(tmp_path: Path, taken_port: int, which: str) -> None:
    ports = {"--port": "0", "--namesrv-port": "0", which: str(taken_port)}
    outcome = run_command(
        *("serve", "--store", str(tmp_path), "--log-level", "error"),
        *(word for pair in ports.items() for word in pair),
    )

    assert outcome.code == 3
    assert f"127.0.0.1:{taken_port}" in outcome.err
    assert "the port is in use" in outcome.err
    assert "choose other ports by the command's options, such as --namesrv-port" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run_command("serve", "--store", str(tmp_path / "file" / "store"), *FREE)

    assert outcome.code == 3
    assert outcome.err.splitlines() == [
        f"Error: store {tmp_path}/file/store: Not a directory",
        "  free some space, change its owner or mode, or choose another directory",
    ]


def test_file_instead_of_a_store_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run_command("serve", "--store", str(tmp_path / "file"), *FREE)

    assert outcome.code == 3
    assert outcome.err.startswith(f"Error: store {tmp_path}/file: it is a file, not a directory")


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    outcome = run_command(
        *("serve", "--store", str(tmp_path), *FREE, "--listen", "203.0.113.7"),
        *("--log-level", "error"),
    )

    assert outcome.code == 3
    assert "203.0.113.7" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("flushDiskTyp=SYNC_FLUSH", "did you mean flushDiskType?"),
        ("listenPort=99999", "port is 99999; it must be 0 to 65535 (listenPort is from"),
        ("brokerId=1", "broker_id is 1; it must be 0, a master, without broker_role SLAVE"),
    ],
)
def test_a_bad_setting_is_refused_with_its_source(
    tmp_path: Path, command: Command, line: str, text: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(line)

    outcome = command("serve", "--config", str(conf), "--store", str(tmp_path / "store"))

    assert outcome.code == 2
    assert str(conf) in outcome.err
    assert text in outcome.err
    assert not (tmp_path / "store").exists()


def test_an_unknown_setting_of_the_environment_is_refused(command: Command) -> None:
    outcome = command("serve", environ={"KOUROU_BROKER_FLUSH_DISK_TIPE": "x"})

    assert outcome.code == 2
    assert "did you mean KOUROU_BROKER_FLUSH_DISK_TYPE?" in outcome.err


def test_unsupported_rocketmq_key_is_a_warning(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("haMaxGapNotInSync=268435456\n")

    with Serving.start(tmp_path / "store", "--config", str(conf)) as serving:
        outcome = serving.stop()

    assert outcome.code == 0
    assert json.loads(outcome.err)["key"] == "haMaxGapNotInSync"


def test_serve_works_without_optional_packages(tmp_path: Path, command: Command) -> None:
    text = (
        "import sys; sys.modules.update(dict.fromkeys(('uvloop', 'isal'))); "
        "from kourou.cli.main import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text, "serve", "--store", str(tmp_path), *FREE, "--ready-json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with Serving(process, json.loads(process.stdout.readline())) as serving:
        sent = command("send", "orders", "x", "-n", serving.namesrv)
        code = serving.stop().code

    assert (sent.code, code) == (0, 0)
    assert command("store", "check", str(tmp_path)).code == 0


def test_second_signal_ends_serve_at_once(tmp_path: Path) -> None:
    process = start_command("serve", "--store", str(tmp_path), *FREE, "--ready-json")
    assert process.stdout is not None
    process.stdout.readline()
    # The suspended process receives both signals before it handles the first one. Linux keeps only
    # one pending signal of a kind, so two kinds are sent.
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "the next start recovers the store" in err
    with Serving.start(tmp_path) as serving:
        assert "recovered after a crash" in str(serving.ready["found"])
