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
from kourou.cli.admin_session import GRACE_S, admin_config, refusal_of, runtime_number
from kourou.cli.controlled_sets import NO_MASTER, ControlledSet, ask_sets
from kourou.cli.exits import FAILED, OK, UNREACHABLE, one_line
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.errors import KourouError, UsageError
from kourou.http2 import frames
from kourou.model.topic import PERM_WRITE
from kourou.protocol.brokers import HARuntimeInfo
from kourou.remoting.network import parse_address
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.etcd_child import is_serving
from kourou.supervising.topology import Role

HELP: Final = """\
Show masters and slaves with the ends of their logs, and exit with a code.

\b
With --dir, of a cluster that `kourou cluster` runs: also its name servers,
controllers and proxies, the PIDs of its processes, and how often each was
started.
Otherwise, of the brokers that are registered with --namesrv, Kourou's or
RocketMQ's.

LOG END and LAG are in bytes of the log; LAG is what a slave does not have yet. COPIES are live
brokers of a set, MINIMUM is the number that its sends wait for. Where controllers elect the
masters, COPIES are the live members of the in-sync set, EPOCH is that of the master. STATE is
failsafe while the members of its set confirm a master, because no controller answers.

\b
Examples:
  kourou cluster status --dir ./cluster
  kourou cluster status -n 10.0.0.1:9876 --json

Exit codes: 0 all is well, 1 a process is down, a replica is not in sync, or a set has no master
that accepts sends, or fewer copies than its minimum, 2 wrong option, 3 no server answers.
"""

_DOWN: Final = "down"
_DISCONNECTED: Final = "not connected to its master"
_NOT_IN_SYNC: Final = "not in sync"
_DEPOSED: Final = "another replica is master"
_FAILSAFE: Final = "failsafe"
_TOO_FEW: Final = "too few copies: sends are not acknowledged"
_READ_ONLY: Final = (
    "refuses sends, as after an interrupted move: `kourou broker set {address} "
    "brokerPermission=6` lets it accept them"
)


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server and what it reported; `problem` is empty if it works.

    Attributes:
        name: the broker name, or the name of another server.
        role: namesrv, proxy, etcd, controller, master or slave; replica: a broker whose role is not
            known.
        id: the broker id; None for another server.
        pid, starts: by the supervisor; None without it.
        epoch: the newest epoch of its log; None if controllers do not decide its role.
        log_end: end of its log, in bytes.
        lag: bytes that a slave does not have yet.
        minimum: number of copies that sends to a master wait for; None if it is not known.
        is_connected: whether a slave receives from its master.
        controllers: the controllers that decide its role; empty without.
        failsafe: whether the members of its set confirm a master, because no controller answers.
        refusal: why it refuses sends as master; empty if it accepts them.
    """

    name: str
    role: str
    id: int | None
    address: str
    pid: int | None = None
    starts: int | None = None
    epoch: int | None = None
    log_end: int | None = None
    lag: int | None = None
    minimum: int | None = None
    is_connected: bool = False
    controllers: str = ""
    failsafe: bool = False
    refusal: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class BrokerSet:
    """The brokers of one name; `problem` is empty if it accepts sends, with its minimum of copies.

    Attributes:
        master: address of the master; None without one.
        epoch: of the master; None if it is fixed.
        in_sync: ids of the in-sync set; None if the master is fixed.
    """

    broker: str
    copies: int
    minimum: int
    master: str | None = None
    epoch: int | None = None
    in_sync: list[int] | None = None
    problem: str = ""


Facts = tuple[list[Server], dict[str, ControlledSet]]
"""Servers with what they reported, and the sets whose masters controllers elect by broker name."""


def show_status(directory: Path | None, namesrv: str, timeout_s: float, *, as_json: bool) -> None:
    """Print the status, and exit with the code."""
    if directory is None:
        where = f"the cluster at {namesrv}"
        collecting = _registered(namesrv, timeout_s)
    else:
        where = str(directory)
        collecting = collect(_expected(directory), timeout_s)
    servers, controlled = output.run_bounded(collecting, 3 * timeout_s + GRACE_S, where)
    servers, sets = judge(servers, controlled)
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
            id=member.broker_id if member.broker else None,
            address=member.address,
            pid=child.get("pid"),
            starts=child.get("starts"),
            minimum=topology.shape.in_sync_replicas if member.broker else None,
            controllers=topology.controllers if member.broker else "",
        )
        for member in topology.members
        if isinstance(child := children.get(member.name, {}), dict)
    ]


async def _registered(namesrv: str, timeout_s: float) -> Facts:
    """Return the facts about all brokers that are registered with the name servers."""
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


async def collect(servers: Sequence[Server], timeout_s: float) -> Facts:
    """Query all servers concurrently; return what they reported, then the controlled sets."""
    if not servers:
        return [], {}
    async with AdminClient(servers[0].address, config=_config(timeout_s)) as admin:
        found = list(await asyncio.gather(*(_query(admin, one, timeout_s) for one in servers)))
        controllers = {one.name: one.controllers for one in found if one.controllers}
        return found, await ask_sets(admin, controllers)


async def _query(admin: AdminClient, server: Server, timeout_s: float) -> Server:
    try:
        async with asyncio.timeout(timeout_s):
            return await _facts(admin, server, timeout_s)
    except TimeoutError:
        return replace(server, problem=f"no answer within {timeout_s:g} s")
    except KourouError as error:
        return replace(server, problem=f"{_DOWN}: {one_line(str(error))}")


async def _facts(admin: AdminClient, server: Server, timeout_s: float) -> Server:
    """Return a server with what it reports.

    Raises:
        KourouError: it does not answer.
    """
    if server.role == Role.NAMESRV.value:
        async with AdminClient(server.address, config=_config(timeout_s)) as own:
            await own.cluster_info()
        return server
    if server.role == Role.ETCD.value:
        serves = await asyncio.to_thread(is_serving, server.address)
        return server if serves else replace(server, problem=f"{_DOWN}: it is not healthy")
    if server.role == Role.CONTROLLER.value:
        await admin.controller_leader(server.address)
        return server
    if server.role == Role.PROXY.value:
        serves = await answers_http2(server.address)
        return server if serves else replace(server, problem=f"{_DOWN}: it does not answer")
    status = await admin.ha_status(server.address)
    config = await admin.broker_config(server.address)
    info = await admin.runtime_info(server.address)
    server = replace(server, refusal=_refusal(server.address, config, info))
    if server.minimum is None:
        server = _with_config(server, config)
    if server.controllers:
        role = Role.MASTER if status.master else Role.SLAVE
        epochs = (await admin.broker_epochs(server.address)).epoch_list
        epoch = epochs[-1].epoch if epochs else None
        server = replace(server, role=role.value, epoch=epoch)
    return with_status(server, status)


async def answers_http2(address: str) -> bool:
    """Return whether a server answers the first bytes of a gRPC client."""
    try:
        reader, writer = await asyncio.open_connection(*parse_address(address))
        try:
            writer.write(frames.PREFACE + frames.FRAME_HEAD.pack(0, 0, frames.SETTINGS, 0, 0))
            head = await reader.readexactly(frames.HEAD_BYTES)
        finally:
            writer.close()
    except (OSError, EOFError):
        return False
    return bool(frames.FRAME_HEAD.unpack(head)[2] == frames.SETTINGS)


def _with_config(server: Server, config: Mapping[str, str]) -> Server:
    """Return a broker with the parts of its settings that count."""
    if config.get("enableControllerMode") == "true":
        least = int(runtime_number(config.get("minInSyncReplicas")) or 1)
        return replace(server, minimum=least, controllers=config.get("controllerAddr", ""))
    is_master = server.role == Role.MASTER.value
    return replace(server, minimum=_minimum(config)) if is_master else server


def _refusal(address: str, config: Mapping[str, str], info: Mapping[str, str]) -> str:
    """Return why a broker with these settings and this runtime information refuses sends."""
    permission = runtime_number(config.get("brokerPermission"))
    if permission is not None and not int(permission) & PERM_WRITE:
        return _READ_ONLY.format(address=address)
    return f"refuses sends: {reason}" if (reason := refusal_of(info)) else ""


def _minimum(config: Mapping[str, str]) -> int:
    """Return the number of copies that sends to a master with this configuration wait for."""
    if config.get("brokerRole") != "SYNC_MASTER":
        return 1
    return int(runtime_number(config.get("inSyncReplicas")) or 1)


def with_status(server: Server, status: HARuntimeInfo) -> Server:
    """Return the server with its state of replication."""
    if server.role == Role.MASTER.value:
        end, is_failsafe = status.master_commit_log_max_offset, bool(status.kourou_failsafe)
        return replace(server, log_end=end, failsafe=is_failsafe)
    client = status.ha_client_runtime_info
    return replace(server, log_end=client.max_offset, is_connected=client.last_read_timestamp > 0)


def judge(
    servers: Sequence[Server], controlled: Mapping[str, ControlledSet] | None = None
) -> tuple[list[Server], list[BrokerSet]]:
    """Return the servers with their lags and problems, and the sets of brokers.

    Args:
        servers: what they reported.
        controlled: the sets whose masters controllers elect, by broker name.
    """
    controlled = controlled or {}
    servers = [_as_registered(one, controlled.get(one.name)) for one in servers]
    masters = {one.name: one for one in servers if one.role == Role.MASTER.value}
    judged = [_judge_slave(one, masters.get(one.name), controlled.get(one.name)) for one in servers]
    names = dict.fromkeys(one.name for one in servers if one.id is not None)
    return judged, [
        _judge_controlled(name, judged, controlled[name])
        if name in controlled
        else _judge_set(name, judged, masters.get(name))
        for name in names
    ]


def _as_registered(server: Server, found: ControlledSet | None) -> Server:
    """Return a controlled broker with its id, and as master only if the controllers agree."""
    replica = None if found is None else found.replica_at(server.address)
    if found is None or replica is None or server.id is None:
        return server
    server = replace(server, id=replica.broker_id)
    master = found.master
    if server.role != Role.MASTER.value or master is None or master == replica:
        return server
    return replace(server, role=Role.SLAVE.value, problem=server.problem or _DEPOSED)


def _judge_slave(slave: Server, master: Server | None, found: ControlledSet | None) -> Server:
    """Return a slave with its lag, and its problem; any other server unchanged."""
    if slave.role != Role.SLAVE.value or slave.problem:
        return slave
    lag = None
    if master is not None and master.log_end is not None and slave.log_end is not None:
        lag = max(0, master.log_end - slave.log_end)
    problem = "" if slave.is_connected else _DISCONNECTED
    if found is not None and found.info is not None and slave.id not in found.in_sync_ids:
        problem = problem or _NOT_IN_SYNC
    return replace(slave, lag=lag, problem=problem)


def _judge_set(name: str, servers: Sequence[Server], master: Server | None) -> BrokerSet:
    copies = sum(one.name == name and not one.problem for one in servers)
    minimum = (master.minimum if master is not None else None) or 1
    problem = ""
    if master is None or master.problem:
        problem = NO_MASTER
    elif copies < minimum:
        problem = _TOO_FEW
    elif master.refusal:
        problem = f"master {master.refusal}"
    address = None if master is None else master.address
    return BrokerSet(broker=name, copies=copies, minimum=minimum, master=address, problem=problem)


def _judge_controlled(name: str, servers: Sequence[Server], found: ControlledSet) -> BrokerSet:
    """Return a set whose master controllers elect."""
    minimum = max((one.minimum or 1 for one in servers if one.name == name), default=1)
    copies, master = len(found.live_in_sync_ids), found.master
    problem = found.problem or found.refusal
    if found.problem and any(one.failsafe for one in servers if one.name == name):
        problem = f"{_FAILSAFE}, the members confirm the master: {problem}"
    if not problem and master is None:
        refusals = [f"replica {x.id} {x.refusal}" for x in servers if x.name == name and x.refusal]
        problem = "; ".join([NO_MASTER, *refusals])
    elif not problem and copies < minimum:
        problem = _TOO_FEW
    elif not problem and master is not None:
        refused = (x.refusal for x in servers if x.address == master.broker_address)
        problem = f"master {refusal}" if (refusal := "".join(refused)) else ""
    return BrokerSet(
        broker=name,
        copies=copies,
        minimum=minimum,
        master=None if master is None else master.broker_address,
        epoch=None if found.info is None else found.info.master_epoch,
        in_sync=found.in_sync_ids,
        problem=problem,
    )


def status_exit_code(servers: Sequence[Server], sets: Sequence[BrokerSet]) -> int:
    """Return 0 without problems, 3 if no server answers, else 1."""
    problems = [server.problem for server in servers]
    if all(problems):
        return UNREACHABLE
    return FAILED if any(problems) or any(one.problem for one in sets) else OK


def _print(servers: Sequence[Server], sets: Sequence[BrokerSet]) -> None:
    is_controlled = any(one.in_sync is not None for one in sets)
    columns = ("SERVER", "ROLE", "ID", "ADDRESS", "PID", "STARTS", "LOG END", "LAG", "STATE")
    output.print_table(
        (*columns[:6], "EPOCH", *columns[6:]) if is_controlled else columns,
        [
            (
                one.name,
                one.role,
                one.id,
                one.address,
                None if one.pid is None else str(one.pid),
                one.starts,
                *((None if one.epoch is None else str(one.epoch),) if is_controlled else ()),
                one.log_end,
                one.lag,
                one.problem or (_FAILSAFE if one.failsafe else "ok"),
            )
            for one in servers
        ],
    )
    if sets:
        output.print_line("")
        output.print_table(
            (
                *("SET", "COPIES", "MINIMUM"),
                *(("MASTER", "EPOCH", "IN SYNC") if is_controlled else ()),
                "STATE",
            ),
            [
                (
                    *(one.broker, one.copies, one.minimum),
                    *(_elected_cells(one) if is_controlled else ()),
                    one.problem or "ok",
                )
                for one in sets
            ],
        )


def _elected_cells(one: BrokerSet) -> tuple[object, ...]:
    """Return the master, its epoch and the in-sync set of a set for the table."""
    epoch = None if one.epoch is None else str(one.epoch)
    return one.master, epoch, " ".join(map(str, one.in_sync or ())) or None
