"""`kourou health`: check of all name servers and brokers, with an exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import admin_config, refusal_of, runtime_number
from kourou.cli.controlled_sets import NO_MASTER, names_without_master
from kourou.cli.exits import FAILED, UNREACHABLE, one_line
from kourou.cli.options import TIMEOUT_DEFAULT_S, AsJson, Namesrv, Timeout
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.client.namesrv_addr import as_url, parse_namesrv_addr
from kourou.errors import KourouError
from kourou.model.host import NAMESRV_DEFAULT

app = typer.Typer(rich_markup_mode=None, add_completion=False)

DISK_FULL_RATIO: Final = 0.9
"""RocketMQ's warning level for the used share of a disk; a Java broker refuses sends from it on."""

_EMPTY: Final = "has no broker"

HELP: Final = """\
Check whether every name server and every broker works.

A broker is healthy if it answers and accepts sends, and its disk is less than 90 % full. A slave
accepts no sends, and is healthy if a master of its name is registered.

\b
Examples:
  kourou health
  kourou health -n '10.0.0.1:9876;10.0.0.2:9876' --json

Exit codes: 0 healthy, 1 a broker or one of several name servers has a problem, 2 wrong option, 3 no
name server answers.
"""


@dataclass(frozen=True, slots=True)
class NamesrvHealth:
    """One name server; `problem` is empty if it answers."""

    address: str
    brokers: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """One broker; `problem` is empty if it is healthy."""

    name: str
    id: int
    address: str
    version: str = ""
    disk_ratio: float | None = None
    problem: str = ""


@app.command(help=HELP)
def health(
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Run the checks, print the results, and exit with the code."""
    addresses = [namesrv] if as_url(namesrv) else list(parse_namesrv_addr(namesrv))
    # Two rounds of requests follow each other, each with its own timeout.
    checks = _check_all(addresses, timeout)
    servers, brokers = output.run_bounded(checks, 2 * timeout + 1, f"the cluster at {namesrv}")
    code = health_exit_code(servers, brokers)
    if as_json:
        output.print_json(
            {
                "healthy": code == 0,
                "name_servers": list(map(asdict, servers)),
                "brokers": list(map(asdict, brokers)),
            }
        )
    else:
        _print(servers, brokers)
    raise typer.Exit(code)


async def _check_all(
    addresses: Sequence[str], timeout_s: float
) -> tuple[list[NamesrvHealth], list[BrokerHealth]]:
    """Check all name servers concurrently, then all brokers that are registered with them."""
    config = replace(admin_config(timeout_s), namespace="")  # servers are outside of namespaces
    found = await asyncio.gather(*(_check_namesrv(one, config) for one in addresses))
    registered = sorted({broker for _, brokers in found for broker in brokers})
    if not registered:
        return [server for server, _ in found], []
    async with AdminClient(";".join(addresses), config=config) as admin:
        checks = (_check_broker(admin, *broker) for broker in registered)
        return [server for server, _ in found], judge_sets(await asyncio.gather(*checks))


async def _check_namesrv(
    address: str, config: AdminConfig
) -> tuple[NamesrvHealth, list[tuple[str, int, str]]]:
    """Return the state of a name server, and its brokers as (name, id, address)."""
    try:
        async with AdminClient(address, config=config) as admin:
            info = await admin.cluster_info()
    except KourouError as error:
        return NamesrvHealth(address, 0, one_line(str(error))), []
    brokers = [
        (name, broker_id, broker)
        for name, data in info.brokers.items()
        for broker_id, broker in data.broker_addrs.items()
    ]
    return NamesrvHealth(address, len(brokers), "" if brokers else _EMPTY), brokers


async def _check_broker(
    admin: AdminClient, name: str, broker_id: int, address: str
) -> BrokerHealth:
    try:
        info = await admin.runtime_info(address)
    except KourouError as error:
        return BrokerHealth(name, broker_id, address, problem=one_line(str(error)))
    ratio = runtime_number(info.get("commitLogDiskRatio"))
    if ratio is not None and ratio > 1:
        ratio = None
    problem = ""
    if refusal := refusal_of(info):
        problem = f"refuses sends: {refusal}"
    elif ratio is not None and ratio >= DISK_FULL_RATIO:
        problem = f"its disk is {ratio:.0%} full"
    version = info.get("brokerVersionDesc", "")
    return BrokerHealth(name, broker_id, address, version, ratio, problem)


def judge_sets(brokers: Sequence[BrokerHealth]) -> list[BrokerHealth]:
    """Return the brokers; those of a name without a registered master have a problem."""
    headless = names_without_master((one.name, one.id) for one in brokers)
    return [
        replace(one, problem=NO_MASTER) if one.name in headless and not one.problem else one
        for one in brokers
    ]


def health_exit_code(servers: Sequence[NamesrvHealth], brokers: Sequence[BrokerHealth]) -> int:
    """Return 0 without problems, 3 if no name server answers, else 1."""
    problems = [server.problem for server in servers]
    if not brokers and all(problems) and not any(server.problem == _EMPTY for server in servers):
        return UNREACHABLE
    return FAILED if any(problems) or any(broker.problem for broker in brokers) else 0


def _print(servers: Sequence[NamesrvHealth], brokers: Sequence[BrokerHealth]) -> None:
    output.print_table(
        ("NAME SERVER", "BROKERS", "STATE"),
        [(server.address, server.brokers, server.problem or "ok") for server in servers],
    )
    if not brokers:
        return
    output.print_line("")
    output.print_table(
        ("BROKER", "ID", "ADDRESS", "VERSION", "DISK", "STATE"),
        [
            (
                broker.name,
                broker.id,
                broker.address,
                broker.version or None,
                None if broker.disk_ratio is None else f"{broker.disk_ratio:.0%}",
                broker.problem or "ok",
            )
            for broker in brokers
        ],
    )
