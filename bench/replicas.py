"""Measures a master with one slave against a master alone, replication lag, and catching up.

With the classic protocol, which Kourou and Java have with the same options: `SYNC_MASTER` with
`inSyncReplicas=2` acknowledges a message when the slave has it. Master and slave share the machine,
so the CPU of a message is that of both.

    replicas-async, -sync              rate and CPU with a slave, and without
    replicas-lag-async, -sync          from just before a send at 5,000/s to the receipt by a
                                       consumer that reads from the slave: an upper bound of the lag
    replicas-lag-controller-async,     the same in controller mode, Kourou only: acknowledged and
    -controller-sync                   shown is what both have
    replicas-catch-up                  a slave with an empty store copies 2 GiB, while messages are
                                       sent: from the first byte on

The lag is also shown from the answer to the send on, by which the master has the message: what a
consumer of the slave waits longer than one of the master. The generator shares the cores, too: its
own delay is about that of the answer.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import java_server, load_generator
from bench.peers import FAST, JAVA
from bench.question import Figure, Question, Values
from bench.servers import Flush, Server, free_ports, launch
from bench.turn import WARM_SECONDS, Turn

_SHAPE: Final = {"conns": 8, "window": 64, "size": 1024, "topic": "bench-replicas"}
_LAG_RATE: Final = 5_000
_LAG_MS: Final[Mapping[Flush, float]] = {"async": 10, "sync": 25}
_LAG_TOPIC: Final = "bench-lag"
_TOPIC_COPIED_S: Final = 60.0
"""Slaves learn their master with a registration, each 30 s, and copy topics every 10 s."""
_BEHIND_BYTES: Final = 2 * 1024**3
_BODY_BYTES: Final = 16 * 1024
_RECORD_BYTES: Final = _BODY_BYTES + 250
_CATCH_UP_S: Final = 300.0
_PIECE: Final = 4 * 1024**2
_COMMON: Final = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerIP1=127.0.0.1
mappedFileSizeCommitLog=1073741824
slaveReadEnable=true
"""


class _Ports(NamedTuple):
    namesrv: int
    master: int
    slave: int
    ha: int
    controller: int


class _Set(NamedTuple):
    """A running master.

    Attributes:
        ports: of all processes.
        home: directory of the stores `master` and `slave`.
        start_slave: starts the slave, if it does not run.
    """

    server: Server
    ports: _Ports
    home: Path
    start_slave: Callable[[], None]


Commands = Callable[[Path, _Ports], list[tuple[str, ...]]]
"""Returns the command lines of name server, master and slave, whose files are in a directory."""


def _write_configs(home: Path, ports: _Ports, flush: Flush, role: str, copies: int) -> None:
    """Write `master.conf` and `slave.conf`."""
    home.mkdir(parents=True, exist_ok=True)
    common = f"{_COMMON}namesrvAddr=127.0.0.1:{ports.namesrv}\n"
    (home / "master.conf").write_text(
        f"{common}brokerId=0\nbrokerRole={role}\ninSyncReplicas={copies}\n"
        f"listenPort={ports.master}\nhaListenPort={ports.ha}\nflushDiskType={flush.upper()}_FLUSH\n"
        f"storePathRootDir={home / 'master'}\n"
    )
    (home / "slave.conf").write_text(
        f"{common}brokerId=1\nbrokerRole=SLAVE\nlistenPort={ports.slave}\n"
        f"haListenPort={ports.ha + 10}\n"
        f"flushDiskType={flush.upper()}_FLUSH\nstorePathRootDir={home / 'slave'}\n"
    )


def _kourou_commands(home: Path, ports: _Ports) -> list[tuple[str, ...]]:
    base = (sys.executable, "-m", "kourou.cli.main", "serve")
    namesrv = f"127.0.0.1:{ports.namesrv}"
    brokers = [
        (
            *(*base, "--config", str(home / f"{name}.conf"), "--namesrv", namesrv, "--quiet"),
            *("--store", str(home / name), "--port", str(port), "--no-grpc", "--no-console"),
            *("--log-level", "warning"),
        )
        for name, port in (("master", ports.master), ("slave", ports.slave))
    ]
    names = (*base, "namesrv", "--dir", str(home / "namesrv"), "--port", str(ports.namesrv))
    return [names, *brokers]


def _write_controlled_configs(home: Path, ports: _Ports, flush: Flush) -> None:
    """Write the files of two replicas of which the first to start becomes master."""
    home.mkdir(parents=True, exist_ok=True)
    for name, port, ha in (
        ("master", ports.master, ports.ha),
        ("slave", ports.slave, ports.ha + 10),
    ):
        (home / f"{name}.conf").write_text(
            f"{_COMMON}namesrvAddr=127.0.0.1:{ports.namesrv}\nenableControllerMode=true\n"
            f"controllerAddr=127.0.0.1:{ports.controller}\nlistenPort={port}\n"
            f"haListenPort={ha}\nflushDiskType={flush.upper()}_FLUSH\n"
            f"storePathRootDir={home / name}\n"
        )


def _controller_command(home: Path, ports: _Ports) -> tuple[str, ...]:
    base = (sys.executable, "-m", "kourou.cli.main", "controller")
    return (*base, "--file", str(home / "controller"), "--port", str(ports.controller))


def _java_commands(home: Path, ports: _Ports) -> list[tuple[str, ...]]:
    (home / "namesrv.conf").write_text(f"listenPort={ports.namesrv}\n")
    return [
        java_server.namesrv_command(home, home / "namesrv.conf"),
        java_server.broker_command(home / "master-home", home / "master.conf"),
        java_server.broker_command(home / "slave-home", home / "slave.conf"),
    ]


_COMMANDS: Final[Mapping[str, Commands]] = {FAST: _kourou_commands, JAVA: _java_commands}


@contextmanager
def _running(
    turn: Turn, flush: Flush, role: str, *, slaves: int, copies: int, is_controlled: bool = False
) -> Iterator[_Set]:
    """Run a master, and its slave unless `slaves` is 0."""
    turn.stage.suspend_all()
    home = turn.stage.directory(f"{turn.peer.name}-{role.lower()}-{copies}")
    # A Java broker also listens on port - 2 and port + 1.
    ports = _Ports(*(free_ports((-2, 0, 1, 10)) for _ in range(5)))
    if is_controlled:
        _write_controlled_configs(home, ports, flush)
    else:
        _write_configs(home, ports, flush, role, copies)
    names, master, slave = _COMMANDS[turn.peer.name](home, ports)
    environ = {**os.environ, "ROCKETMQ_HOME": str(home), "HOME": str(home)}
    addresses = f"127.0.0.1:{ports.master}", f"127.0.0.1:{ports.namesrv}"
    started = []

    def start_slave() -> None:
        # It refuses sends, so that only its port shows that it runs.
        copy = Server(turn.peer.name, f"127.0.0.1:{ports.slave}", addresses[1], (), dialect="redis")
        started.append(launch(copy, [slave], home / "slave-log", environ))

    commands = [names, master, *([slave] if slaves else [])]
    if is_controlled:
        commands.insert(0, _controller_command(home, ports))
    try:
        server = launch(Server(turn.peer.name, *addresses, ()), commands, home / "log", environ)
        started.append(server)
        if turn.peer.start_warm_s:
            warm = f"{turn.peer.start_warm_s}s"
            server.load("send", topic="warm-up", conns=16, warm="0s", dur=warm)
        yield _Set(server, ports, home, start_slave)
    finally:
        for one in started:
            one.kill()
        shutil.rmtree(home, ignore_errors=True)


def _send(turn: Turn, server: Server) -> dict[str, Any]:
    report = server.load("send", warm=f"{WARM_SECONDS}s", dur=f"{turn.seconds}s", **_SHAPE)
    if turn.peer.is_ours and load_generator.has_refused(report):
        raise RuntimeError(f"{report['errors']} sends refused, codes {report.get('codes')}")
    turn.reports.append(report)
    return report


def _measure_sends(turn: Turn, flush: Flush) -> Values | None:
    if turn.peer.name not in _COMMANDS:
        return None
    reports = []
    for slaves in (0, 1):
        role = "SYNC_MASTER" if slaves else "ASYNC_MASTER"
        with _running(turn, flush, role, slaves=slaves, copies=1 + slaves) as running:
            reports.append(_send(turn, running.server))
    rates = [one["msgs_per_s"] for one in reports]
    cpus = [one["server_cpu_s"] * 1e6 / max(1, one["msgs"]) for one in reports]
    return {
        "rate alone": rates[0],
        "rate with a slave": rates[1],
        "part of the rate": rates[1] / rates[0],
        "CPU alone": cpus[0],
        "CPU with a slave": cpus[1],
    }


def _measure_lag(turn: Turn, flush: Flush, *, is_controlled: bool) -> Values | None:
    if turn.peer.name not in ((FAST,) if is_controlled else _COMMANDS):
        return None
    slaves = 0 if is_controlled else 1  # the slave starts when there is a master
    with _running(
        turn, flush, "ASYNC_MASTER", slaves=slaves, copies=1, is_controlled=is_controlled
    ) as running:
        if is_controlled:
            running.start_slave()
        running.server.load("setup", topic=_LAG_TOPIC)
        report = _when_copied(lambda: _lag_report(turn, running))
    turn.reports.append(report)
    times, after = report["lat_us"], report["after_ack_us"]
    return {
        **{name: times[name] / 1000 for name in ("p50", "p99", "max")},
        "answer, p99": report["send_ack_us"]["p99"] / 1000,
        "after the answer, p50": after["p50"] / 1000,
        "after the answer, p99": after["p99"] / 1000,
    }


def _lag_report(turn: Turn, running: _Set) -> dict[str, Any]:
    return running.server.load(
        "e2e",
        topic=_LAG_TOPIC,
        rate=_LAG_RATE,
        size=1024,
        readaddr=f"127.0.0.1:{running.ports.slave}",
        warm=f"{WARM_SECONDS}s",
        dur=f"{turn.seconds}s",
    )


def _when_copied(load: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Repeat a load that fails at once until the slave has copied the topic."""
    ends_at_s = time.monotonic() + _TOPIC_COPIED_S
    while True:
        try:
            return load()
        except RuntimeError:
            if time.monotonic() > ends_at_s:
                raise
        time.sleep(1)


def _measure_catch_up(turn: Turn) -> Values | None:
    if turn.peer.name not in _COMMANDS:
        return None
    with _running(turn, "async", "ASYNC_MASTER", slaves=0, copies=1) as running:
        server, home = running.server, running.home
        count = _BEHIND_BYTES // _RECORD_BYTES
        shape = {"conns": 16, "size": _BODY_BYTES, "count": count}
        server.load("send", topic="bench-behind", dur="300s", **shape)
        before = _send(turn, server)["msgs_per_s"]
        os.sync()
        disk = _disk_rate(home / "disk-rate")
        running.start_slave()
        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(_send, turn, server)
            rate = _copy_rate(home)
            during = sending.result()["msgs_per_s"]
    return {
        "rate": rate,
        "part of the disk's rate": rate / disk,
        "part of the sends": during / before,
    }


def _copy_rate(home: Path) -> float:
    """Return the MB/s at which the slave's log grew until it was as long as the master's."""
    logs = [home / name / "commitlog" for name in ("master", "slave")]
    started_s = began_s = time.monotonic()
    first_bytes = 0
    while (copied := _used_bytes(logs[1])) < _used_bytes(logs[0]):
        now_s = time.monotonic()
        if now_s - started_s > _CATCH_UP_S:
            raise RuntimeError(f"the slave has {copied} bytes after {_CATCH_UP_S:.0f} s")
        if not first_bytes:
            first_bytes, began_s = copied, now_s
        time.sleep(0.05)
    return (copied - first_bytes) / (time.monotonic() - began_s) / 1e6


def _used_bytes(log: Path) -> int:
    files = log.iterdir() if log.is_dir() else ()
    return sum(file.stat().st_blocks * 512 for file in files)


def _disk_rate(path: Path) -> float:
    """Return the MB/s at which this disk writes and syncs a file of half of the log's size."""
    data = os.urandom(_PIECE)
    began_s = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(_BEHIND_BYTES // 2 // _PIECE):
            file.write(data)
        os.fsync(file.fileno())
    took_s = time.monotonic() - began_s
    path.unlink()
    return _BEHIND_BYTES / 2 / took_s / 1e6


def _sends(flush: Flush) -> Question:
    return Question(
        name=f"replicas-{flush}",
        text=f"send with a slave that must have each message, 8 x 64 in flight, {flush} flush",
        figures=(
            Figure("rate alone", "messages/s", is_more_better=True),
            Figure("rate with a slave", "messages/s", is_more_better=True, ratio=2),
            Figure("part of the rate", "x", is_more_better=True),
            Figure("CPU alone", "us/message"),
            Figure("CPU with a slave", "us/message", ratio=2),
        ),
        measure=lambda turn: _measure_sends(turn, flush),
        is_long=True,
    )


def _lag(flush: Flush, *, is_controlled: bool = False) -> Question:
    mode, text = ("controller-", "in controller mode, ") if is_controlled else ("", "")
    return Question(
        name=f"replicas-lag-{mode}{flush}",
        text=f"send at 5,000/s to receipt from the slave, {text}{flush} flush",
        figures=(
            Figure("p50", "ms"),
            Figure("p99", "ms", limit=_LAG_MS[flush]),
            Figure("max", "ms"),
            Figure("answer, p99", "ms"),
            Figure("after the answer, p50", "ms"),
            Figure("after the answer, p99", "ms"),
        ),
        measure=lambda turn: _measure_lag(turn, flush, is_controlled=is_controlled),
        is_long=True,
    )


QUESTIONS: Final = (
    _sends("async"),
    _sends("sync"),
    _lag("async"),
    _lag("sync"),
    _lag("async", is_controlled=True),
    _lag("sync", is_controlled=True),
    Question(
        name="replicas-catch-up",
        text="an empty slave copies 2 GiB while messages are sent, async flush",
        figures=(
            Figure("rate", "MB/s", is_more_better=True),
            Figure("part of the disk's rate", "x", is_more_better=True, limit=0.7),
            Figure("part of the sends", "x", is_more_better=True, limit=0.8),
        ),
        measure=_measure_catch_up,
        is_long=True,
    ),
)
