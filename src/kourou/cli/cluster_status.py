"""`kourou cluster status`: masters and slaves with the ends of their logs; exit code for programs.

Facts are requested from all servers at once (`collect`); `judge` compares them with what is
expected, and is pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import GRACE_S, admin_config, runtime_number
from kourou.cli.exits import FAILED, OK, UNREACHABLE, one_line
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.errors import KourouError, UsageError
from kourou.protocol.brokers import HARuntimeInfo
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.topology import Role

HELP: Final = """\
Show masters and slaves with the ends of their logs, and exit with a code.

\b
With --dir, of a cluster that `kourou cluster` runs: also its name servers,
the PIDs of its processes, and how often each was started. Otherwise, of the
brokers that are registered with --namesrv, Kourou's or RocketMQ's.

LOG END and LAG are in bytes of the log; LAG is what a slave does not have yet. COPIES are live
brokers of a set, MINIMUM is the number that its sends wait for.

\b
Examples:
  kourou cluster status --dir ./cluster
  kourou cluster status -n 10.0.0.1:9876 --json

Exit codes: 0 all is well, 1 a process is down, or a set has fewer copies than its minimum, 2 wrong
option, 3 no server answers.
"""

_DOWN: Final = "down"
_DISCONNECTED: Final = "not connected to its master"


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server and what it reported; `problem` is empty if it works.

    Attributes:
        name: the broker name, or the name of a name server.
        role: namesrv, master or slave.
        id: the broker id; None for a name server.
        pid, starts: by the supervisor; None without it.
        log_end: end of its log, in bytes.
        lag: bytes that a slave does not have yet.
        minimum: number of copies that sends to a master wait for; None if it is not known.
        is_connected: whether a slave receives from its master.
    """

    name: str
    role: str
    id: int | None
    address: str
    pid: int | None = None
    starts: int | None = None
    log_end: int | None = None
    lag: int | None = None
    minimum: int | None = None
    is_connected: bool = False
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class BrokerSet:
    """The brokers of one name; `problem` is empty if it has its minimum of copies."""

    broker: str
    copies: int
    minimum: int
    problem: str = ""


def show_status(directory: Path | None, namesrv: str, timeout_s: float, *, as_json: bool) -> None:
    """Print the status, and exit with the code."""
    if directory is None:
        where = f"the cluster at {namesrv}"
        collecting = _registered(namesrv, timeout_s)
    else:
        where = str(directory)
        collecting = collect(_expected(directory), timeout_s)
    servers = output.run_bounded(collecting, 2 * timeout_s + GRACE_S, where)
    servers, sets = judge(servers)
    code = status_exit_code(servers, sets)
    if as_json:
        found = {"healthy": code == OK, "sets": list(map(asdict, sets))}
        output.print_json(found | {"servers": list(map(asdict, servers))})
    else:
        _print(servers, sets)
    raise typer.Exit(code)


def _expected(directory: Path) -> list[Server]:
    """Return the servers of a cluster on this machine, by its directory.

    Raises:
        UsageError: no cluster is there.
    """
    files = ClusterDirectory(directory)
    topology = files.topology()
    if topology is None:
        raise UsageError(
            f"{files.path} has no cluster: name the --dir of a `kourou cluster`, or leave it out "
            "for the brokers of --namesrv"
        )
    children: Mapping[str, Any] = files.state().get("children", {}) if files.is_locked else {}
    return [
        Server(
            name=member.broker or member.name,
            role=member.role.value,
            id=None if member.role is Role.NAMESRV else member.broker_id,
            address=member.address,
            pid=child.get("pid"),
            starts=child.get("starts"),
            minimum=topology.shape.in_sync_replicas if member.role is Role.MASTER else None,
        )
        for member in topology.members
        if isinstance(child := children.get(member.name, {}), dict)
    ]


async def _registered(namesrv: str, timeout_s: float) -> list[Server]:
    """Return the facts of all brokers that are registered with the name servers."""
    async with AdminClient(namesrv, config=_config(timeout_s)) as admin:
        info = await admin.cluster_info()
    brokers = [
        Server(
            name=name,
            role=(Role.SLAVE if number else Role.MASTER).value,
            id=number,
            address=address,
        )
        for name, data in sorted(info.brokers.items())
        for number, address in sorted(data.broker_addrs.items())
    ]
    return await collect(brokers, timeout_s)


def _config(timeout_s: float) -> AdminConfig:
    """Return the client options; servers are outside of namespaces."""
    return replace(admin_config(timeout_s), namespace="")


async def collect(servers: Sequence[Server], timeout_s: float) -> list[Server]:
    """Query all servers concurrently; return them with what they reported."""
    if not servers:
        return []
    async with AdminClient(servers[0].address, config=_config(timeout_s)) as admin:
        return list(await asyncio.gather(*(_query(admin, one, timeout_s) for one in servers)))


async def _query(admin: AdminClient, server: Server, timeout_s: float) -> Server:
    try:
        async with asyncio.timeout(timeout_s):
            if server.role == Role.NAMESRV.value:
                async with AdminClient(server.address, config=_config(timeout_s)) as own:
                    await own.cluster_info()
                return server
            status = await admin.ha_status(server.address)
            minimum = server.minimum
            if minimum is None and server.role == Role.MASTER.value:
                minimum = _minimum(await admin.broker_config(server.address))
            return with_status(replace(server, minimum=minimum), status)
    except TimeoutError:
        return replace(server, problem=f"no answer within {timeout_s:g} s")
    except KourouError as error:
        return replace(server, problem=f"{_DOWN}: {one_line(str(error))}")


def _minimum(config: Mapping[str, str]) -> int:
    """Return the number of copies that sends to a master with this configuration wait for."""
    if config.get("brokerRole") != "SYNC_MASTER":
        return 1
    return int(runtime_number(config.get("inSyncReplicas")) or 1)


def with_status(server: Server, status: HARuntimeInfo) -> Server:
    """Return the server with its state of replication."""
    if server.role == Role.MASTER.value:
        return replace(server, log_end=status.master_commit_log_max_offset)
    client = status.ha_client_runtime_info
    return replace(server, log_end=client.max_offset, is_connected=client.last_read_timestamp > 0)


def judge(servers: Sequence[Server]) -> tuple[list[Server], list[BrokerSet]]:
    """Return the servers with their lags and problems, and the sets of brokers."""
    masters = {one.name: one for one in servers if one.role == Role.MASTER.value}
    judged = [_judge_slave(one, masters.get(one.name)) for one in servers]
    names = dict.fromkeys(one.name for one in servers if one.role != Role.NAMESRV.value)
    return judged, [_judge_set(name, judged, masters.get(name)) for name in names]


def _judge_slave(slave: Server, master: Server | None) -> Server:
    """Return a slave with its lag, and its problem; any other server unchanged."""
    if slave.role != Role.SLAVE.value or slave.problem:
        return slave
    lag = None
    if master is not None and master.log_end is not None and slave.log_end is not None:
        lag = max(0, master.log_end - slave.log_end)
    return replace(slave, lag=lag, problem="" if slave.is_connected else _DISCONNECTED)


def _judge_set(name: str, servers: Sequence[Server], master: Server | None) -> BrokerSet:
    copies = sum(one.name == name and not one.problem for one in servers)
    minimum = (master.minimum if master is not None else None) or 1
    problem = ""
    if master is None or master.problem:
        problem = "no master: its queues accept no sends"
    elif copies < minimum:
        problem = "too few copies: sends are not acknowledged"
    return BrokerSet(broker=name, copies=copies, minimum=minimum, problem=problem)


def status_exit_code(servers: Sequence[Server], sets: Sequence[BrokerSet]) -> int:
    """Return 0 without problems, 3 if no server answers, else 1."""
    problems = [server.problem for server in servers]
    if all(problems):
        return UNREACHABLE
    return FAILED if any(problems) or any(one.problem for one in sets) else OK


def _print(servers: Sequence[Server], sets: Sequence[BrokerSet]) -> None:
    columns = ("SERVER", "ROLE", "ID", "ADDRESS", "PID", "STARTS", "LOG END", "LAG", "STATE")
    output.print_table(
        columns,
        [
            (
                one.name,
                one.role,
                one.id,
                one.address,
                None if one.pid is None else str(one.pid),
                one.starts,
                one.log_end,
                one.lag,
                one.problem or "ok",
            )
            for one in servers
        ],
    )
    if sets:
        output.print_line("")
        output.print_table(
            ("SET", "COPIES", "MINIMUM", "STATE"),
            [(one.broker, one.copies, one.minimum, one.problem or "ok") for one in sets],
        )
