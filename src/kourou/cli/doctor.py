"""`kourou doctor`: problems of this machine and of the cluster, with remedies.

The checks of the cluster are here, those of the machine in `doctor_machine`. A broker's time is
computed from its runtime information: its start time, and its run time in whole seconds. The
difference of the clocks is accurate to half a second.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import admin_config, refusal_of, runtime_number
from kourou.cli.controlled_sets import NO_MASTER, names_without_master
from kourou.cli.doctor_machine import (
    Finding,
    Port,
    State,
    check_open_files,
    check_ports,
    check_store,
    check_versions,
)
from kourou.cli.exits import FAILED, one_line
from kourou.cli.health import DISK_FULL_RATIO
from kourou.cli.machine import machine_addresses
from kourou.cli.options import CONSOLE_PORT, GRPC_PORT, AsJson, Namesrv, Timeout
from kourou.cli.output import counted
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.clock import Clock, SystemClock
from kourou.decimals import decimal_or, is_decimal
from kourou.errors import KourouError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.remoting.network import Address, format_address, is_loopback, parse_address

_STATE_WIDTH: Final = 7
_NAME_WIDTH: Final = 30

app = typer.Typer(rich_markup_mode=None, add_completion=False)

TIMEOUT_S: Final = 2.0
_GRPC_CLIENTS: Final = (
    "gRPC clients, whose topics must exist (`kourou topic create TOPIC --type normal|fifo|...`)"
)
BROKER_PORT: Final = 10911
NAMESRV_PORT: Final = 9876
VIP_DISTANCE: Final = 2
"""A broker also listens on the port this much below its own (the VIP port)."""

HELP: Final = """\
Check this machine and the cluster for problems, and name the remedies.

On this machine: versions, the limit of open files, the ports of `kourou serve` and the processes
that use them, the store, the space on its disk and the time of a sync. In the cluster: every name
server, and every broker at its registered address, its clock and its store. Nothing is changed.

\b
Examples:
  kourou doctor
  kourou doctor --store /data/store --port 20911
  kourou doctor -n 10.0.0.1:9876 --json

Exit codes: 0 no problem found (notes do not count), 1 a problem found, 2 wrong option.
"""

_Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The broker's port.")]


@app.command(help=HELP)
def doctor(
    *,
    store: Annotated[Path, typer.Option(metavar="DIR", help="The store directory.")] = Path(
        "~/.kourou/store"
    ),
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The local address of the ports.")
    ] = "127.0.0.1",
    port: _Port = BROKER_PORT,
    namesrv_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="The name server's port.")
    ] = NAMESRV_PORT,
    console_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="The port of /metrics.")
    ] = CONSOLE_PORT,
    grpc_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="The port of gRPC clients.")
    ] = GRPC_PORT,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Run the checks, print the findings, and exit with the code."""
    # The default name server need not run yet. The checks send requests in sequence.
    cluster = output.run_bounded(
        check_cluster(namesrv, timeout, SystemClock(), is_expected=namesrv != NAMESRV_DEFAULT),
        3 * timeout + 1,
        f"the cluster at {namesrv}",
    )
    ports = [
        Port(namesrv_port, "the name server", "--namesrv-port"),
        Port(port, "the broker", "--port"),
        Port(port - VIP_DISTANCE, "old clients of the broker", "--port", is_needed=False),
        Port(console_port, "/metrics and /healthz", "--console-port", is_needed=False),
        Port(grpc_port, _GRPC_CLIENTS, "--grpc-port", is_needed=False),
    ]
    findings = [
        *check_versions(),
        *check_open_files(),
        *check_ports(listen, [one for one in ports if one.number > 0], answered=cluster.ports),
        *check_store(store.expanduser()),
        *cluster.findings,
    ]
    _print(findings, as_json=as_json)
    if any(finding.state is State.WRONG for finding in findings):
        raise typer.Exit(FAILED)


def _print(findings: Sequence[Finding], *, as_json: bool) -> None:
    wrong = sum(finding.state is State.WRONG for finding in findings)
    if as_json:
        output.print_json({"ok": not wrong, "findings": list(map(asdict, findings))})
        return
    name_width = max(len(finding.check) for finding in findings)
    # A long name must leave room for the text next to it.
    begin_width = _STATE_WIDTH + min(name_width, _NAME_WIDTH)
    columns = max(begin_width + 30, shutil.get_terminal_size().columns)
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        begin = f"{finding.state.value:<5}  {finding.check}".ljust(begin_width) + "  "
        lines = textwrap.wrap(
            f"{begin}{finding.detail}{remedy}",
            columns,
            subsequent_indent=" " * (begin_width + 2),
            drop_whitespace=True,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            output.print_line(line)
    output.print_line("")
    output.print_line(f"{output.counted(wrong, 'problem')} found" if wrong else "no problems found")


SKEW_WRONG_MS: Final = 5_000
DISPATCH_BEHIND_BYTES: Final = 64 * 1024 * 1024

_RUNTIME: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")


@dataclass(slots=True)
class ClusterFindings:
    """The findings, and the ports of the servers that answered."""

    findings: list[Finding] = field(default_factory=list)
    ports: set[int] = field(default_factory=set)


async def check_cluster(
    namesrv: str,
    timeout_s: float,
    clock: Clock,
    *,
    is_expected: bool,
    find_addresses: Callable[[], Sequence[str]] = machine_addresses,
) -> ClusterFindings:
    """Check every name server, and every broker that is registered with one of them.

    Args:
        namesrv: the name servers, separated by `;`.
        timeout_s: timeout of each request.
        clock: the clock of this machine.
        is_expected: whether a name server that does not answer is a problem, not a note.
        find_addresses: returns the addresses of this machine for other machines.
    """
    result = ClusterFindings()
    config = replace(admin_config(timeout_s), namespace="")  # servers are outside of namespaces
    servers = [address.strip() for address in namesrv.split(";") if address.strip()]
    brokers: dict[tuple[str, int], str] = {}
    for address, found in zip(
        servers, await asyncio.gather(*(_brokers(one, config) for one in servers)), strict=True
    ):
        result.findings.append(judge_namesrv(address, found, is_expected=is_expected))
        if not isinstance(found, KourouError):
            result.ports.add(_port(address))
            brokers.update(found)
    if not brokers:
        return result
    async with AdminClient(namesrv, config=config) as admin:
        checks = [
            _check_broker(admin, name, address, servers, clock)
            for (name, _), address in sorted(brokers.items())
        ]
        for address, findings in zip(
            (brokers[key] for key in sorted(brokers)), await asyncio.gather(*checks), strict=True
        ):
            result.findings += findings
            if findings[0].state is not State.WRONG:
                result.ports.add(_port(address))
        result.findings += judge_masters(brokers)
        local = {_port(at) for at in servers if is_loopback(parse_address(at, 0)[0])} & result.ports
        outside = [(host, port) for host in find_addresses() for port in sorted(local)]
        for findings in await asyncio.gather(
            *(_check_from_outside(admin, one, config) for one in outside)
        ):
            result.findings += findings
    return result


def judge_namesrv(
    address: str, brokers: Mapping[tuple[str, int], str] | KourouError, *, is_expected: bool
) -> Finding:
    """Return the finding for a name server; arguments as for `check_cluster`."""
    check = f"name server {address}"
    if isinstance(brokers, KourouError):
        state = State.WRONG if is_expected else State.NOTE
        remedy = "start one with `kourou serve`, or choose another with --namesrv"
        return Finding(state, check, _reason(brokers), remedy)
    if not brokers:
        remedy = "start a broker with `kourou serve --namesrv`"
        return Finding(State.WRONG, check, "has no broker", remedy)
    return Finding(State.OK, check, f"answers, has {counted(len(brokers), 'broker')}")


def judge_masters(brokers: Iterable[tuple[str, int]]) -> list[Finding]:
    """Return a finding for each name of registered brokers, with their ids, without a master."""
    names = sorted(names_without_master(brokers))
    remedy = "`kourou cluster status` shows its replicas; start the one that was master last"
    return [Finding(State.WRONG, f"broker {name}", NO_MASTER, remedy) for name in names]


async def _check_from_outside(
    admin: AdminClient, server: Address, config: AdminConfig
) -> list[Finding]:
    """Check the broker addresses that a name server of this machine returns to other machines.

    Clients on other machines connect to it at another address of this machine, and may get other
    broker addresses. A name server that does not listen there serves this machine only. A firewall
    is not detected.
    """
    address = format_address(server)
    found = await _brokers(address, config)
    if isinstance(found, KourouError):
        return []
    addresses = sorted((name, broker_address) for (name, _), broker_address in found.items())
    return [
        judge_from_outside(name, broker_address, address, await _failure(admin, broker_address))
        for name, broker_address in addresses
    ]


async def _failure(admin: AdminClient, address: str) -> str | None:
    """Return the reason why no broker answers at the address; None if one does."""
    try:
        await admin.runtime_info(address)
    except KourouError as error:
        return _reason(error)
    return None


def judge_from_outside(name: str, address: str, server: str, failure: str | None) -> Finding:
    """Return the finding for a broker address that `server` returns to other machines."""
    check = f"broker {name}"
    remedy = "start it with --advertise and an address of this machine that other machines can use"
    if is_loopback(parse_address(address)[0]):
        text = f"clients of {server} get the address {address}, which is their own machine"
        return Finding(State.WRONG, check, text, remedy)
    if failure is not None:
        text = f"clients of {server} get the address {address}, which does not answer: {failure}"
        return Finding(State.WRONG, check, text, remedy)
    return Finding(State.OK, check, f"answers at {address}, the address that {server} returns")


async def _brokers(
    address: str, config: AdminConfig
) -> Mapping[tuple[str, int], str] | KourouError:
    """Return the brokers of one name server, or the error of the request."""
    try:
        async with AdminClient(address, config=config) as admin:
            info = await admin.cluster_info()
    except KourouError as error:
        return error
    return {
        (name, broker_id): broker_address
        for name, data in info.brokers.items()
        for broker_id, broker_address in data.broker_addrs.items()
    }


async def _check_broker(
    admin: AdminClient, name: str, address: str, servers: Sequence[str], clock: Clock
) -> list[Finding]:
    """Connect to a broker at its registered address, and check its runtime information."""
    began_ms = clock.now_ms()
    try:
        info = await admin.runtime_info(address)
    except KourouError as error:
        text = f"its registered address {address} does not answer here: {_reason(error)}"
        remedy = "start it, or restart it with --advertise and an address that clients can use"
        return [Finding(State.WRONG, f"broker {name}", text, remedy)]
    now_ms = (began_ms + clock.now_ms()) // 2
    return [
        judge_address(name, address, servers, info.get("brokerVersionDesc", "?")),
        judge_clock(name, info, now_ms),
        judge_store(name, info),
        *judge_groups(name, info),
    ]


def judge_address(name: str, address: str, servers: Sequence[str], version: str) -> Finding:
    """Return the finding for a registered broker address that answered."""
    check, host = f"broker {name}", address.rpartition(":")[0].strip("[]")
    if is_loopback(host) and not all(
        is_loopback(one.rpartition(":")[0].strip("[]")) for one in servers
    ):
        text = f"its registered address {address} works on this machine only"
        return Finding(State.WRONG, check, text, "start it with --advertise and its real address")
    scope = ", for clients on this machine only" if is_loopback(host) else ""
    return Finding(State.OK, check, f"{version} answers at its registered address {address}{scope}")


def judge_clock(name: str, info: Mapping[str, str], now_ms: int) -> Finding:
    """Return the finding for the broker's clock; `now_ms` is the time of its answer."""
    check = f"clock of {name}"
    runtime = _RUNTIME.fullmatch(info.get("runtime", ""))
    boot = info.get("bootTimestamp", "")
    if runtime is None or not is_decimal(boot):
        return Finding(State.NOTE, check, "not reported")
    days, hours, minutes, seconds = map(int, runtime.groups())
    ran_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    ahead_ms = int(boot) + ran_ms + 500 - now_ms
    if abs(ahead_ms) < SKEW_WRONG_MS:
        return Finding(State.OK, check, "agrees with this machine's")
    relation = "ahead of" if ahead_ms > 0 else "behind"
    text = (
        f"{abs(ahead_ms) / 1000:,.0f} s {relation} this machine's: times in messages are misleading"
    )
    return Finding(State.WRONG, check, text, "set both clocks by NTP (chrony, systemd-timesyncd)")


def judge_store(name: str, info: Mapping[str, str]) -> Finding:
    """Return the finding for the store information of a broker."""
    check = f"store of {name}"
    if refusal := refusal_of(info):
        return Finding(State.WRONG, check, "refuses sends", refusal)
    ratio = runtime_number(info.get("commitLogDiskRatio")) or 0.0
    if ratio >= DISK_FULL_RATIO:
        remedy = "free some space there, or move the store to a larger disk"
        return Finding(State.WRONG, check, f"its disk is {ratio:.0%} full", remedy)
    behind = runtime_number(info.get("dispatchBehindBytes")) or 0.0
    if behind > DISPATCH_BEHIND_BYTES:
        text = f"{behind / 1024**2:,.0f} MiB are stored but not yet visible to consumers"
        return Finding(State.NOTE, check, text, "wait; if it grows, the disk is too slow")
    return Finding(State.OK, check, f"accepts sends, its disk is {ratio:.0%} full")


def judge_groups(name: str, info: Mapping[str, str]) -> list[Finding]:
    """Return a finding if a broker reports groups whose members have different subscriptions.

    Only Kourou's brokers report them.
    """
    groups = list(filter(None, info.get("kourouDifferingGroups", "").split(",")))
    if not groups:
        return []
    text = (
        f"members have different subscriptions in {counted(len(groups), 'group')}: "
        f"{', '.join(groups)}; they lose each other's messages"
    )
    remedy = f"see `kourou group describe {groups[0]}`, and give all members the same subscriptions"
    return [Finding(State.WRONG, f"groups of {name}", text, remedy)]


def _reason(error: KourouError) -> str:
    """Return the cause of a failed request, without the advice of the client's error text."""
    return one_line(str(error.__cause__ or error))


def _port(address: str) -> int:
    port = address.rpartition(":")[2]
    return decimal_or(port, 0)
