"""`kourou cluster`: the processes of a cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import typer

from kourou import __version__
from kourou.cli import output
from kourou.cli.exits import FAILED, INTERRUPTED, one_line, print_stderr
from kourou.cli.interrupts import handle_stop_signals
from kourou.cli.serve_grpc import missing_packages
from kourou.clock import SystemClock
from kourou.disk import require_file_calls
from kourou.errors import UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.elected_masters import ElectedMasters
from kourou.supervising.supervisor import Supervisor
from kourou.supervising.topology import (
    HOST,
    NEEDS_ETCD,
    Member,
    Role,
    Shape,
    Topology,
    create_topology,
)

HELP: Final = """\
Run a cluster on this machine until Ctrl-C: name servers, brokers, controllers, proxies.

\b
--brokers N is also how one machine's cores are used: each broker uses one
core, topics are created on all of them, and clients spread over them. A
process that ends is started again. DIR holds the ports, stores and logs.
With --controllers, a master that is lost is replaced by one of its
replicas; several controllers need the program etcd. Without, masters are
fixed: while one is down, its queues accept no sends, until it is started
again. With --proxies, gRPC clients (RocketMQ's 5.x SDKs) are served, too.

\b
Examples:
  kourou cluster --brokers 2 --dir ./cluster
  kourou cluster --brokers 2 --replicas 2 --namesrvs 2 --dir ./cluster
  kourou cluster --brokers 1 --replicas 3 --controllers 3 --dir ./cluster
  kourou cluster --dir ./cluster                             again, as before
  kourou cluster status --dir ./cluster                      from another terminal

Settings of all brokers: --config, environment (KOUROU_BROKER_FLUSH_DISK_TYPE).

Exit codes: 0 stopped, 1 stopped and a process was killed or failed, 2 wrong option, or DIR has
another cluster, 3 could not start (port in use, DIR in use), 130 stopped by a second Ctrl-C.
"""

_NAMESRV_PORT: Final = int(NAMESRV_DEFAULT.rpartition(":")[2])
_LABEL: Final = 13
_DUPLICATE_S: Final = 0.5
"""A second signal within this time is no second request: `timeout` sends each signal twice."""
_ASYNC: Final = "ASYNC_FLUSH"
_NO_FAILOVER: Final = "No failover: while a master is down, its queues accept no sends."
_DIED: Final = "was killed by"


def start_cluster(
    directory: Path | None,
    wanted: Mapping[str, int],
    *,
    namesrv_port: int | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Run the cluster of a directory until a signal.

    Args:
        directory: holds its ports, stores and logs.
        wanted: the fields of `Shape` that are given.
        namesrv_port: of the first name server; 0: any free one; None: the usual one, if it is not
            chosen yet.
        config: settings of all brokers.
        as_json: print each event as JSON.
    """
    require_file_calls("`kourou cluster`")
    if directory is None:
        raise UsageError("add --dir DIR: the directory of the cluster's ports, stores and logs")
    if config is not None and not config.is_file():
        raise UsageError(f"--config {config} is not a file")
    files = ClusterDirectory(directory)
    shape = Shape(**{"brokers": 1, **wanted})  # refused before a directory is created
    if shape.proxies and (missing := missing_packages()):
        raise UsageError(missing)
    new_port = _NAMESRV_PORT if namesrv_port is None else namesrv_port
    with files.locked():
        topology = files.settle(
            wanted,
            lambda shape: create_topology(
                shape,
                new_port,
                lambda port: _is_free(port, is_requested=port == new_port),
                SystemRandom(),
                has_etcd=_has_etcd(),
            ),
        )
        if (port := topology.of_role(Role.NAMESRV)[0].port) != namesrv_port and namesrv_port:
            raise UsageError(
                f"the first name server of {files.path} has port {port}, not --namesrv-port "
                f"{namesrv_port}: leave the option out, or choose another directory with --dir"
            )
        if topology.of_role(Role.ETCD) and not _has_etcd():
            raise UsageError(f"the cluster in {files.path} {NEEDS_ETCD}")
        path = None if config is None else str(config.absolute())
        with _held_ports(topology):
            code = asyncio.run(_run(topology, files, path, as_json=as_json))
    raise typer.Exit(code)


def _has_etcd() -> bool:
    return shutil.which("etcd") is not None


def _is_free(port: int, *, is_requested: bool) -> bool:
    """Return whether a server could listen on a port.

    A port that is not requested is free only if no other cluster holds it, and if no connection of
    an earlier server lingers.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(is_requested))
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


@contextmanager
def _held_ports(topology: Topology) -> Iterator[None]:
    """Hold the ports of all servers, so that no other program gets one during a restart.

    On Linux, a socket that is bound and does not listen holds a port, on which a server can still
    listen, because both use SO_REUSEADDR. Other systems have no such way.
    """
    with ExitStack() as held:
        for member in topology.members if sys.platform == "linux" else ():
            for port in member.ports:
                holder = held.enter_context(socket.socket())
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with suppress(OSError):  # in use: the server reports it
                    holder.bind((HOST, port))
        yield


async def _run(
    topology: Topology, files: ClusterDirectory, config: str | None, *, as_json: bool
) -> int:
    """Run the cluster; return the exit code."""
    events = _Events(topology, files, as_json=as_json)
    async with AsyncExitStack() as running:
        if topology.shape.controllers:
            events.elected = elected = ElectedMasters(topology, events.report)
            report, before_stop = elected.report, elected.before_stop
            watching = asyncio.create_task(elected.run(), name="watch masters")
            running.callback(watching.cancel)
        else:
            report, before_stop = events.report, None
        supervisor = Supervisor(topology, files, report, config=config, before_stop=before_stop)
        events.supervisor = supervisor
        return await _run_until_signal(supervisor, files)


async def _run_until_signal(supervisor: Supervisor, files: ClusterDirectory) -> int:
    loop = asyncio.get_running_loop()
    first_s: float | None = None
    is_killed = False

    def on_signal() -> None:
        nonlocal first_s, is_killed
        if first_s is None:
            first_s = loop.time()
            supervisor.stop()
        elif loop.time() - first_s > _DUPLICATE_S:
            is_killed = True
            print_stderr("stopped immediately; the next start recovers the stores")
            supervisor.kill()

    handle_stop_signals(loop, on_signal)
    unclean = await supervisor.run()
    if supervisor.refused:
        raise UsageError(f"the cluster cannot run: {supervisor.refused}")
    if is_killed:
        return INTERRUPTED
    if unclean:
        print_stderr(f"stopped, but not cleanly: {', '.join(unclean)}; see {files.path}/logs")
    return FAILED if unclean else 0


class _Events:
    """Prints events: as JSON, or for people."""

    def __init__(self, topology: Topology, files: ClusterDirectory, *, as_json: bool) -> None:
        self.supervisor: Supervisor | None = None
        self.elected: ElectedMasters | None = None
        self._topology = topology
        self._files = files
        self._as_json = as_json
        self._clock = SystemClock()
        self._failing: set[str] = set()
        self._is_shown = False  # the start screen

    def report(self, event: str, fields: Mapping[str, Any]) -> None:
        """Print an event; without a reader the cluster stops, as other commands end."""
        if event == "cluster.ready":
            fields = self._ready_fields()
        with suppress(OSError, UsageError):
            if self._as_json:
                found = {"event": event, "at_ms": self._clock.now_ms(), **fields}
                output.print_line(json.dumps(found, ensure_ascii=False))
            else:
                self._print(event, fields)
            return
        assert self.supervisor is not None, "set before it runs"
        if event != "cluster.stopping":
            self.supervisor.stop()

    def _ready_fields(self) -> dict[str, Any]:
        assert self.supervisor is not None, "set before it runs"
        pids, ready = self.supervisor.pids, self.supervisor.ready
        flushes = {ready.get(one.name, {}).get("flush_disk_type") for one in self._topology.members}
        shape = self._topology.shape
        return {
            "version": __version__,
            "directory": str(self._files.path),
            "namesrv": self._topology.namesrv,
            "controllers": self._topology.controllers or None,
            "grpc": self._topology.proxies or None,
            "replicas": shape.replicas,
            "in_sync_replicas": shape.in_sync_replicas,
            "flush_disk_type": _ASYNC if _ASYNC in flushes else "SYNC_FLUSH",
            "members": [
                {
                    "child": member.name,
                    "role": self._role(member).value,
                    "broker": member.broker or None,
                    "id": member.broker_id if member.broker else None,
                    "address": member.address,
                    "console": f"http://{HOST}:{port}" if (port := member.console_port) else None,
                    "pid": pids.get(member.name),
                }
                for member in self._topology.members
            ],
        }

    def _role(self, member: Member) -> Role:
        """Return the role of a process, of a replica its present one."""
        if member.role is not Role.REPLICA or self.elected is None:
            return member.role
        is_master = self.elected.masters.get(member.broker) == member.name
        return Role.MASTER if is_master else Role.SLAVE

    def _print(self, event: str, fields: Mapping[str, Any]) -> None:
        if event == "cluster.ready":
            self._is_shown = True
            for line in screen_lines(fields):
                output.print_line(line)
        elif event == "cluster.stopped":
            output.print_line("Stopped.")
        elif event == "cluster.stopping":
            first = "proxies, then masters" if self._topology.shape.proxies else "masters"
            last = "controllers and name servers" if self.elected else "name servers"
            output.print_line(f"Stopping: {first}, then slaves, then {last}.")
        elif event == "cluster.waiting":
            output.print_line(f"Waiting: {one_line(fields['reason'])}")
            where = shlex.quote(str(self._files.path))
            output.print_line(f"  kourou cluster status --dir {where}  shows more")
        elif event == "master.lost":
            output.print_line(f"{fields['broker']} has no master")
        elif event == "master.elected":
            if self._is_shown:
                output.print_line(
                    f"{fields['child']} is the master of {fields['broker']} (epoch "
                    f"{fields['epoch']})"
                )
        else:
            text = self._child_line(event, fields)
            if text is not None:
                output.print_line(text)

    def _child_line(self, event: str, fields: Mapping[str, Any]) -> str | None:
        """Return the line of an event of a process; None for events of a start without problems.

        The ends of a process that fails again and again are not repeated.
        """
        name = fields["child"]
        if event == "child.failing":
            self._failing.add(name)
            reason = f": {fields['last_error']}" if fields["last_error"] else ""
            return (
                f"{name} ended {fields['failures']} times in a row and is started again and again, "
                f"in growing pauses{reason}  (log: {fields['log']})"
            )
        if event == "child.killed":
            return f"{name} was killed, because it had not stopped yet"
        if event == "child.started" and fields["starts"] > 1 and name not in self._failing:
            return f"{name} started again (pid {fields['pid']})"
        if event == "child.ready" and name in self._failing:
            self._failing.remove(name)
            return f"{name} serves again"
        if event == "child.ended" and fields["restart_in_s"] is not None:
            return None if name in self._failing else f"{name} {_ended_text(fields['exit_code'])}"
        return None


def _ended_text(code: int | None) -> str:
    if code is None:
        return "could not be started"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"{_DIED} {signal.Signals(-code).name}"
    return f"{_DIED} signal {-code}"


def screen_lines(ready: Mapping[str, Any]) -> list[str]:
    """Return the start screen: addresses, masters and slaves, promises, next steps."""
    members = ready["members"]
    brokers = [member for member in members if member["broker"] is not None]
    rows = [
        (m["broker"], m["role"], m["id"], m["address"], m["console"], str(m["pid"]))
        for m in brokers
    ]
    columns = ("BROKER", "ROLE", "ID", "ADDRESS", "CONSOLE", "PID")
    at = "" if ready["namesrv"] == NAMESRV_DEFAULT else f" -n '{ready['namesrv']}'"
    steps = (
        f"kourou topic create orders{at}",
        f"kourou send orders 'first message'{at}",
        f"kourou cluster status --dir {shlex.quote(ready['directory'])}",
    )
    labelled = (
        ("Name servers", ready["namesrv"]),
        *([("Controllers", ready["controllers"])] if ready["controllers"] else []),
        *([("gRPC clients", ready["grpc"])] if ready["grpc"] else []),
        ("Directory", ready["directory"]),
        ("Promise", promise_text(ready)),
        ("", _failover_text(ready)),
        *(("" if number else "Next", step) for number, step in enumerate(steps)),
    )
    return [
        "",
        f"Kourou {ready['version']}, a cluster on this machine  Ctrl-C to stop",
        "",
        *output.table_lines(columns, rows),
        "",
        *(label.ljust(_LABEL) + text for label, text in labelled),
        "",
    ]


def _failover_text(ready: Mapping[str, Any]) -> str:
    if not ready["controllers"]:
        return _NO_FAILOVER
    needed = output.counted(ready["in_sync_replicas"], "replica")
    return f"Failover within seconds; sends need {needed} in sync."


def promise_text(ready: Mapping[str, Any]) -> str:
    """Return what an acknowledged send means in a cluster, by its ready event."""
    is_async = ready["flush_disk_type"] == _ASYNC
    danger = "; a power failure can lose it" if is_async else ""
    if ready["replicas"] == 1:
        where = "in the system's memory" if is_async else "on the disk of its master"
        return f"One copy: an acknowledged message is {where}{danger}."
    where = "in the memory" if is_async else "on the disks"
    if ready["controllers"]:
        where = where.removesuffix("s")
        return f"An acknowledged message is {where} of each replica in sync{danger}."
    more = ready["replicas"] - ready["in_sync_replicas"]
    if more:
        danger += "; one more copy follows" if more == 1 else f"; {more} more copies follow"
    return f"An acknowledged message is {where} of a master and a slave{danger}."
