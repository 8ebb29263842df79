"""The supervisor of a cluster: runs its processes until it is stopped, and reports events.

`Supervision` decides; this module starts processes, waits for their ends, and sends signals.

A process stops when its stdin ends (`--stop-at-eof`). All of them have the same pipe as stdin, and
only the supervisor has its other end: so they stop with the supervisor, however it ends. Linux has
PR_SET_PDEATHSIG for this, which macOS lacks, and which kills without a clean stop. Each process is
a process group, so that Ctrl-C at a terminal reaches the supervisor only, which stops in order.

    event             fields
    child.started     child, pid, starts
    child.ready       child, pid
    child.ended       child, pid, exit_code (negative: the signal), restart_in_s
    child.failing     child, failures, log, last_error: it ends again and again; reported once
    child.killed      child: it did not stop in time
    cluster.ready     all processes serve; reported once
    cluster.stopping  -
    cluster.stopped   unclean: names of processes that were killed, or whose last exit code is not 0
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from kourou.errors import StoreUnusableError
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.member_options import ETCD_CHILD, KOUROU, member_options
from kourou.supervising.supervision import Order, Patience, Supervision
from kourou.supervising.topology import Member, Role, Topology

Report = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of an event and its fields."""

BeforeStop = Callable[[], Awaitable[Sequence[str]]]
"""Prepares the stop of the cluster; returns the names of the processes to stop first."""

_LINE_BYTES_MAX: Final = 1024 * 1024
"""Longest ready line that is read; damage makes it long."""
_USAGE: Final = 2
"""Exit code of a process whose options or settings are wrong."""
_EARLY: Final = (130, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of a process that was stopped while it was loading."""
_ETCD_STOPPED: Final = -signal.SIGTERM
"""Exit code of etcd after a clean stop: it then ends itself by the signal."""
_SIGNALS: Final = {Order.STOP: signal.SIGTERM, Order.KILL: signal.SIGKILL}


class Supervisor:
    """Runs the processes of one cluster. Created inside a running loop; `run` is called once.

    Attributes:
        refused: error text of a process that refused its settings at its first start; the cluster
            then stops. Empty otherwise.
        ready: what each process last said when it served, as `kourou serve --ready-json` prints it.
        pids: pid of each process that runs.
    """

    def __init__(
        self,
        topology: Topology,
        directory: ClusterDirectory,
        report: Report,
        *,
        config: str | None = None,
        patience: Patience | None = None,
        before_stop: BeforeStop | None = None,
    ) -> None:
        """Supervise the cluster of a directory that is locked.

        Args:
            topology: the processes.
            directory: the directory.
            report: called with each event.
            config: a file with settings of all brokers; None without one.
            patience: limits of waits.
            before_stop: called once before processes are stopped; None without it.
        """
        has_ids = all(directory.has_broker_id(name) for name in topology.names(Role.REPLICA))
        starts = topology.start_groups(in_order=not has_ids)
        self._supervision = Supervision(starts, topology.stop_groups(), patience)
        self._topology = topology
        self._members = {member.name: member for member in topology.members}
        self._directory = directory
        self._report = report
        self._config = config
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._starts = dict.fromkeys(self._members, 0)
        self._exit_codes: dict[str, int] = {}
        self._killed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_announced = False
        self._loop = asyncio.get_running_loop()
        self._stdin = -1
        self._before_stop = before_stop
        self._is_stop_requested = False
        self.refused = ""
        self.ready: dict[str, Mapping[str, Any]] = {}

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    async def run(self) -> list[str]:
        """Run the cluster until `stop`; return the names of processes that did not stop cleanly."""
        self._stdin, held = os.pipe()
        try:
            self._save()
            while not self._supervision.is_ended:
                await self._turn()
        finally:
            os.close(held)  # stops what still runs after an error
            os.close(self._stdin)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        unclean = sorted(self._killed | {name for name, code in self._exit_codes.items() if code})
        self._report("cluster.stopped", {"unclean": unclean})
        return unclean

    def stop(self) -> None:
        """Stop all processes: masters first, then slaves, then controllers and name servers."""
        if not self._is_stop_requested:
            self._is_stop_requested = True
            self._report("cluster.stopping", {})
            self._changed.set()

    def kill(self) -> None:
        """Kill all processes now."""
        self._is_stop_requested = True
        for order, name in self._supervision.kill_all():
            self._signal(order, name)
        self._changed.set()

    async def _turn(self) -> None:
        """Do what is due, then wait for an event."""
        self._changed.clear()
        if self._is_stop_requested and not self._supervision.is_stopping:
            first = await self._before_stop() if self._before_stop is not None else ()
            self._supervision.stop(first)
        for order, name in self._supervision.due(self._loop.time()):
            if order is Order.START:
                await self._start(self._members[name])
            else:
                self._signal(order, name)
        if self._supervision.is_ended:
            return
        due_s = self._supervision.next_due_s()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                await self._changed.wait()

    async def _start(self, member: Member) -> None:
        name = member.name
        own = str(self._directory.own(name))
        words, settings = member_options(self._topology, member, own, self._config)
        self._starts[name] += 1
        try:
            with self._directory.open_log(name) as log:
                process = await asyncio.create_subprocess_exec(
                    *(ETCD_CHILD if member.role is Role.ETCD else KOUROU),
                    *words,
                    stdin=self._stdin,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **settings},
                    process_group=0,
                    limit=_LINE_BYTES_MAX,
                )
        except OSError as error:
            self._on_end(name, None, None, str(error))
            return
        self._processes[name] = process
        if name in self._killed:
            process.kill()
        self._report(
            "child.started", {"child": name, "pid": process.pid, "starts": self._starts[name]}
        )
        self._save()
        task = asyncio.create_task(self._watch(name, process), name=f"watch {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        """Follow a process until it ends; its first line on stdout says that it serves."""
        assert process.stdout is not None, "it is a pipe"
        ready = await _ready_line(process.stdout)
        if ready is not None:
            self.ready[name] = ready
            self._on_ready(name, process.pid)
            while await process.stdout.read(4096):
                pass
        code = await process.wait()
        del self._processes[name]
        self._on_end(name, process.pid, code, self._directory.last_error(name))

    def _on_ready(self, name: str, pid: int) -> None:
        self._supervision.on_ready(name)
        self._report("child.ready", {"child": name, "pid": pid})
        if self._supervision.is_ready and not self._is_announced:
            self._is_announced = True
            self._report("cluster.ready", {})
        self._save()
        self._changed.set()

    def _on_end(self, name: str, pid: int | None, code: int | None, last_error: str) -> None:
        """Note the end of a process, or that it could not be started: then `code` is None."""
        ending = self._supervision.on_end(name, self._loop.time())
        is_early = code in _EARLY and not ending.was_ready  # stopped before it had opened files
        is_etcd = self._members[name].role is Role.ETCD
        is_clean = is_early or (is_etcd and code == _ETCD_STOPPED)
        self._exit_codes[name] = 0 if is_clean else 1 if code is None else code
        ended = {"pid": pid, "exit_code": code, "restart_in_s": ending.restart_in_s}
        self._report("child.ended", {"child": name, **ended})
        if code == _USAGE and self._starts[name] == 1:
            self.refused = f"{name}: {last_error}"
            self.stop()
        elif ending.is_loop:
            log = str(self._directory.log_file(name))
            failing = {"failures": ending.failures, "log": log, "last_error": last_error}
            self._report("child.failing", {"child": name, **failing})
        self._save()
        self._changed.set()

    def _signal(self, order: Order, name: str) -> None:
        if order is Order.KILL:
            self._killed.add(name)
            self._report("child.killed", {"child": name})
        process = self._processes.get(name)
        if process is not None:  # else it is being started, and is killed then
            with suppress(ProcessLookupError):  # it has just ended
                process.send_signal(_SIGNALS[order])

    def _save(self) -> None:
        """Write the state for `kourou cluster status`, if possible: it is a convenience only."""
        children = {
            name: {
                "pid": self._processes[name].pid if name in self._processes else None,
                "starts": self._starts[name],
                "failures": self._supervision.failures(name),
                "exit_code": self._exit_codes.get(name),
            }
            for name in self._members
        }
        with suppress(StoreUnusableError):  # a full disk must not stop the cluster
            self._directory.write_state({"pid": os.getpid(), "children": children})


async def _ready_line(stdout: asyncio.StreamReader) -> Mapping[str, Any] | None:
    """Return the JSON object of the first line; empty if it is none, None if there is no line."""
    try:
        line = await stdout.readline()
        found = json.loads(line) if line else None
    except ValueError:  # no JSON, or too long
        return {}
    return found if found is None or isinstance(found, dict) else {}
