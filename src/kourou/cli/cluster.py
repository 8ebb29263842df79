"""`kourou cluster`: a cluster on this machine, and the brokers of any with their rates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession, refusal_of, runtime_number
from kourou.cli.cluster_adopt import ADOPT_HELP, adopt
from kourou.cli.cluster_elect import ELECT_HELP, elect, elect_unclean
from kourou.cli.cluster_move import MOVE_HELP, Target, move
from kourou.cli.cluster_start import HELP, start_cluster
from kourou.cli.cluster_status import HELP as STATUS_HELP
from kourou.cli.cluster_status import show_status
from kourou.cli.controlled_sets import Controlling
from kourou.cli.exits import one_line
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    WAIT_MAX_S,
    AsJson,
    BrokerName,
    ClusterDir,
    DryRun,
    Namesrv,
    StorePath,
    Timeout,
    Yes,
    refuse_options,
    seconds,
)
from kourou.client.administration.admin import AdminClient
from kourou.clock import SystemClock
from kourou.errors import KourouError
from kourou.model.host import NAMESRV_DEFAULT

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)

LIST_HELP: Final = """\
List the brokers with their rates and disk usage.

IN/S and OUT/S are messages per second over the last 10 s; IN and OUT are messages since the
broker's local midnight. OLDEST is the age of the oldest message, DISK the used share of the disk.
ID 0 is a master. Numbers are abbreviated, such as 12.3k and 4.0M; --json prints them in full. For a
broker that does not answer, STATE shows the reason. `kourou health` reports problems by exit code.

\b
Examples:
  kourou cluster list
  kourou cluster list --json
"""


_Brokers = Annotated[
    int | None, typer.Option(metavar="N", help="Masters.  [default: those of DIR]")
]
_Replicas = Annotated[
    int | None,
    typer.Option(
        metavar="R",
        help="Copies of each message: R - 1 slaves of each master.  [default: those of DIR, or 1]",
    ),
]
_Controllers = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        help="Controllers, which elect the masters; 0: masters are fixed.  [default: those of DIR, "
        "or 0]",
    ),
]
_Proxies = Annotated[
    int | None,
    typer.Option(
        metavar="P", help="Proxies, which serve gRPC clients.  [default: those of DIR, or 0]"
    ),
]
_Namesrvs = Annotated[
    int | None, typer.Option(metavar="M", help="Name servers.  [default: those of DIR, or 1]")
]
_NamesrvPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="The port of the first name server; 0 means any free.  [default: that of DIR, or "
        "9876]",
    ),
]
_ControllerAddresses = Annotated[
    str | None,
    typer.Option(
        "--controllers",
        metavar="HOST:PORT[;...]",
        help="The controllers.  [default: those of DIR, or of the registered brokers]",
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings of all brokers, as for `kourou serve`."),
]


@dataclass(frozen=True, kw_only=True)
class BrokerLine:
    """One broker; None for values that it did not report.

    Attributes:
        in_tps, out_tps: messages per second over the last 10 s.
        in_today, out_today: messages since the broker's local midnight.
        oldest_store_at_ms: store time of its oldest message, in epoch ms.
        disk_ratio: used share of its disk, 0 to 1.
        state: "ok", or the problem.
    """

    cluster: str
    broker: str
    id: int
    address: str
    version: str | None = None
    in_tps: float | None = None
    out_tps: float | None = None
    in_today: int | None = None
    out_today: int | None = None
    oldest_store_at_ms: int | None = None
    disk_ratio: float | None = None
    state: str = "ok"


@app.callback(help=HELP, invoke_without_command=True)
def cluster(
    context: typer.Context,
    *,
    brokers: _Brokers = None,
    replicas: _Replicas = None,
    controllers: _Controllers = None,
    namesrvs: _Namesrvs = None,
    proxies: _Proxies = None,
    directory: ClusterDir = None,
    namesrv_port: _NamesrvPort = None,
    config: _Config = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each event.")
    ] = False,
) -> None:
    """Run a cluster on this machine, unless a command below is called."""
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    given = {"brokers": brokers, "replicas": replicas, "namesrvs": namesrvs}
    given |= {"controllers": controllers, "proxies": proxies}
    start_cluster(
        directory,
        {name: number for name, number in given.items() if number is not None},
        namesrv_port=namesrv_port,
        config=config,
        as_json=as_json,
    )


@app.command("list", help=LIST_HELP)
def list_brokers(
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the brokers."""
    # The wait for a silent broker must leave time to print the others.
    found = AdminSession(namesrv, timeout).run(lambda admin: _lines(admin, timeout * 0.8))
    if as_json:
        output.print_json([asdict(line) for line in found])
    else:
        print_lines(found, SystemClock().now_ms())


@app.command(help=STATUS_HELP)
def status(
    *,
    directory: ClusterDir = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the status."""
    show_status(directory, namesrv, timeout, as_json=as_json)


@app.command("elect", help=ELECT_HELP, short_help="Make a replica the master of its set.")
def elect_replica(
    *,
    broker: BrokerName,
    broker_id: Annotated[
        int | None, typer.Option("--id", metavar="N", min=1, help="The replica to elect.")
    ] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Elect one that is not in sync; loses messages.")
    ] = False,
    yes: Yes = False,
    controllers: _ControllerAddresses = None,
    directory: ClusterDir = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Elect a replica."""
    controlling = Controlling.of_options(directory, namesrv, controllers, timeout)
    if unclean:
        elect_unclean(broker, broker_id, controlling, yes=yes, as_json=as_json)
    else:
        elect(broker, broker_id, controlling, as_json=as_json)


@app.command("move", help=MOVE_HELP, short_help="Move the master of a set to another replica.")
def move_master(
    *,
    broker: BrokerName,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="HOST[:PORT]", help="The address of the new master."),
    ] = None,
    broker_id: Annotated[
        int | None, typer.Option("--id", metavar="N", min=1, help="The id of the new master.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the old one when it was stopped.")
    ] = False,
    wait: Annotated[
        float,
        seconds("--wait", "The longest wait for a broker.", least=0, most=WAIT_MAX_S),
    ] = 600.0,
    controllers: _ControllerAddresses = None,
    directory: ClusterDir = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Move a master."""
    move(
        broker,
        Target(place=to, broker_id=broker_id),
        Controlling.of_options(directory, namesrv, controllers, timeout),
        wait_s=wait,
        remove=remove,
        as_json=as_json,
    )


@app.command("adopt", help=ADOPT_HELP, short_help="Make a single broker's store a set's first.")
def adopt_store(*, path: StorePath, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Adopt a store."""
    adopt(path, dry_run=dry_run, as_json=as_json)


async def _lines(admin: AdminClient, timeout_s: float) -> list[BrokerLine]:
    """Query all brokers concurrently; return them sorted by cluster, name and id."""
    info = await admin.cluster_info()
    queries = (
        _query_broker(
            admin, timeout_s, cluster=data.cluster, broker=name, broker_id=number, address=at
        )
        for name, data in info.brokers.items()
        for number, at in data.broker_addrs.items()
    )
    lines = await asyncio.gather(*queries)
    return sorted(lines, key=lambda line: (line.cluster, line.broker, line.id))


async def _query_broker(
    admin: AdminClient, timeout_s: float, *, cluster: str, broker: str, broker_id: int, address: str
) -> BrokerLine:
    try:
        async with asyncio.timeout(timeout_s):
            info = await admin.runtime_info(address)
    except TimeoutError:
        state = f"no answer within {timeout_s:g} s"
    except KourouError as error:
        state = one_line(str(error))
    else:
        return broker_line(
            info, cluster=cluster, broker=broker, broker_id=broker_id, address=address
        )
    return BrokerLine(cluster=cluster, broker=broker, id=broker_id, address=address, state=state)


def broker_line(
    info: Mapping[str, str], *, cluster: str, broker: str, broker_id: int, address: str
) -> BrokerLine:
    """Return the line of a broker with this runtime information, under RocketMQ's names."""
    return BrokerLine(
        cluster=cluster,
        broker=broker,
        id=broker_id,
        address=address,
        version=info.get("brokerVersionDesc"),
        in_tps=runtime_number(info.get("putTps")),
        out_tps=runtime_number(info.get("getTransferredTps")),
        in_today=_since_morning(info, "msgPutTotal"),
        out_today=_since_morning(info, "msgGetTotal"),
        oldest_store_at_ms=_positive(runtime_number(info.get("earliestMessageTimeStamp"))),
        disk_ratio=runtime_number(info.get("commitLogDiskRatio")),
        state="refuses sends" if refusal_of(info) else "ok",
    )


def _positive(number: float | None) -> int | None:
    return int(number) if number else None


def _since_morning(info: Mapping[str, str], prefix: str) -> int | None:
    now = runtime_number(info.get(f"{prefix}TodayNow"))
    morning = runtime_number(info.get(f"{prefix}TodayMorning"))
    return None if now is None or morning is None else max(0, int(now - morning))


def print_lines(lines: list[BrokerLine], now_ms: int) -> None:
    """Print a table for each cluster; with short names and addresses it fits in 80 columns."""
    clusters = sorted({line.cluster for line in lines})
    for number, name in enumerate(clusters):
        members = [line for line in lines if line.cluster == name]
        versions = ", ".join(sorted({line.version for line in members if line.version}))
        output.print_line(("\n" if number else "") + f"{name}  {versions}".rstrip())
        output.print_table(
            ("BROKER", "ID", "ADDRESS", "IN/S", "OUT/S", "IN", "OUT", "OLDEST", "DISK", "STATE"),
            [
                (
                    line.broker,
                    line.id,
                    line.address,
                    _short(line.in_tps),
                    _short(line.out_tps),
                    _short(line.in_today),
                    _short(line.out_today),
                    _age(line.oldest_store_at_ms, now_ms),
                    None if line.disk_ratio is None else f"{line.disk_ratio:.0%}",
                    line.state,
                )
                for line in members
            ],
        )


def _short(number: float | None) -> str | None:
    """Return a number in at most six characters, such as `999`, `12.3k` or `4.0M`."""
    if number is None:
        return None
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.0f}{unit}" if not unit or number >= 99.5 else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}T"


def _age(at_ms: int | None, now_ms: int) -> str | None:
    """Return the age of an instant in its largest unit, such as `3d`."""
    if at_ms is None:
        return None
    seconds = max(0, now_ms - at_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
