"""Tests of the supervisor with small programs in place of servers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from kourou.supervising import supervisor as module
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.supervision import Patience
from kourou.supervising.supervisor import Supervisor
from kourou.supervising.topology import Role, Shape, create_topology

SERVER: Final = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
os.write(1, b"ready\\n")
os.read(0, 1)
"""
"""Says that it serves; ends with exit code 0 by SIGTERM or when stdin ends."""
ETCD: Final = "import os; os.write(1, b'ready\\n'); os.read(0, 1)"
"""Serves, and ends by SIGTERM."""
LOADING: Final = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
try:
    os.open("loading", os.O_CREAT)
    os.read(0, 1)
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
"""
"""Ends like Python when SIGTERM interrupts its imports."""
FAILING: Final = "import sys; sys.exit('Error: no disk')"
REFUSING: Final = "import sys; print('Error: wrong setting', file=sys.stderr); sys.exit(2)"
DEAF: Final = SERVER.replace("lambda *_: os._exit(0)", "signal.SIG_IGN")
TIMEOUT_S: Final = 60.0
QUICK: Final = Patience(pause_first_s=0.01, pause_max_s=0.02, stop_patience_s=0.2)

Event = tuple[str, Mapping[str, Any]]
OnEvent = Callable[[Supervisor, str, Mapping[str, Any]], None]


def run(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    on_event: OnEvent,
    replicas: int = 1,
    controllers: int = 0,
) -> tuple[list[str], list[Event], Supervisor]:
    """Supervise one broker until `on_event` stops it; return what was unclean, and the events."""
    monkeypatch.setattr(module, "KOUROU", (sys.executable, "-S", "-E", "-c", program))
    etcd = (sys.executable, "-S", "-E", "-c", ETCD)
    monkeypatch.setattr(module, "ETCD_CHILD", etcd)
    shape = Shape(brokers=1, replicas=replicas, controllers=controllers)
    topology = create_topology(shape, 0, lambda _: True, Random(1), has_etcd=True)
    events: list[Event] = []

    async def main() -> tuple[list[str], Supervisor]:
        def report(event: str, fields: Mapping[str, Any]) -> None:
            events.append((event, fields))
            on_event(found, event, fields)

        async def last_replica() -> list[str]:
            events.append(("", {}))
            return list(topology.names(Role.REPLICA)[-1:])

        before_stop = last_replica if controllers else None
        found = Supervisor(topology, directory, report, patience=QUICK, before_stop=before_stop)
        on_event(found, "", {})
        async with asyncio.timeout(TIMEOUT_S):
            return await found.run(), found

    directory = ClusterDirectory(path)
    with directory.locked():
        unclean, found = asyncio.run(main())
    return unclean, events, found


def test_processes_stop_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_when_ready(found: Supervisor, event: str, _: Mapping[str, Any]) -> None:
        if event == "cluster.ready":
            found.stop()

    unclean, events, _ = run(tmp_path, monkeypatch, SERVER, stop_when_ready, replicas=2)

    assert unclean == []
    ends = [fields["child"] for event, fields in events if event == "child.ended"]
    assert ends == ["broker-a", "broker-a-1", "namesrv-1"]


def test_chosen_master_stops_first_and_the_controllers_after_the_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_when_ready(found: Supervisor, event: str, _: Mapping[str, Any]) -> None:
        if event == "cluster.ready":
            found.stop()

    unclean, events, _ = run(
        tmp_path, monkeypatch, SERVER, stop_when_ready, replicas=2, controllers=1
    )

    assert unclean == []
    starts = [fields["child"] for event, fields in events if event == "child.started"]
    assert starts[2:] == ["controller-1", "broker-a-1", "broker-a-2"]
    ends = [fields.get("child") for event, fields in events if event in ("", "child.ended")]
    assert ends[:4] == [None, "broker-a-2", "broker-a-1", "controller-1"]
    assert set(ends[4:]) == {"etcd", "namesrv-1"}


def test_killed_process_is_started_again_and_the_state_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []

    def kill_once(found: Supervisor, event: str, fields: Mapping[str, Any]) -> None:
        if event == "cluster.ready":
            os.kill(found.pids["broker-a"], signal.SIGKILL)
        elif event == "child.started" and fields["starts"] == 2:
            states.append(ClusterDirectory(tmp_path).state())
        elif event == "child.ready" and states:
            found.stop()

    unclean, events, _ = run(tmp_path, monkeypatch, SERVER, kill_once)

    assert unclean == [], "only its last end counts"
    assert next(f["exit_code"] for e, f in events if e == "child.ended") == -signal.SIGKILL
    assert states[0]["children"]["broker-a"]["exit_code"] == -signal.SIGKILL
    assert states[0]["children"]["broker-a"]["pid"] is None
    assert [event for event, _ in events].count("cluster.ready") == 1


def test_process_that_fails_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_at_fifth(found: Supervisor, event: str, fields: Mapping[str, Any]) -> None:
        if event == "child.started" and fields["starts"] == 5:
            found.stop()

    _, events, _ = run(tmp_path, monkeypatch, FAILING, stop_at_fifth)

    failing = [fields for event, fields in events if event == "child.failing"]
    assert [(one["child"], one["last_error"]) for one in failing] == [
        ("namesrv-1", "Error: no disk")
    ]


def test_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_when_named(found: Supervisor, event: str, _: Mapping[str, Any]) -> None:
        monkeypatch.setattr(module, "KOUROU", (str(tmp_path / "missing"),))
        if event == "child.failing":
            found.stop()

    unclean, events, _ = run(tmp_path, monkeypatch, SERVER, stop_when_named)

    assert unclean == ["namesrv-1"]
    assert "No such file" in events[-3][1]["last_error"]


def test_refused_settings_stop_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, events, found = run(tmp_path, monkeypatch, REFUSING, lambda *_: None)

    assert found.refused == "namesrv-1: Error: wrong setting"
    assert [event for event, _ in events] == [
        "child.started",
        "child.ended",
        "cluster.stopping",
        "cluster.stopped",
    ]


def test_process_that_is_stopped_while_it_loads_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def stop_when_it_loads(found: Supervisor, event: str, _: Mapping[str, Any]) -> None:
        async def stop() -> None:
            while not (tmp_path / "loading").exists():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
            found.stop()

        if event == "child.started":
            tasks.append(asyncio.create_task(stop()))

    tasks: list[asyncio.Task[None]] = []
    unclean, events, _ = run(tmp_path, monkeypatch, LOADING, stop_when_it_loads)

    ends = [fields["exit_code"] for event, fields in events if event == "child.ended"]
    assert (unclean, ends) == ([], [-signal.SIGINT])


def test_process_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_when_ready(found: Supervisor, event: str, _: Mapping[str, Any]) -> None:
        if event == "cluster.ready":
            found.stop()

    unclean, events, _ = run(tmp_path, monkeypatch, DEAF, stop_when_ready)

    assert unclean == ["broker-a", "namesrv-1"]
    killed = [fields["child"] for event, fields in events if event == "child.killed"]
    assert killed == ["broker-a", "namesrv-1"]


def test_process_that_is_being_started_is_killed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_soon(found: Supervisor, event: str, _: Mapping[str, Any]) -> None:
        if not event:
            asyncio.get_running_loop().call_soon(found.kill)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # processes inherit it
    try:
        unclean, events, _ = run(tmp_path, monkeypatch, DEAF, kill_soon)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert unclean == ["namesrv-1"]
    names = [event for event, _ in events]
    assert names[:2] == ["child.killed", "child.started"]
    assert names.count("child.killed") == 1, "it is not waited for in vain first"
