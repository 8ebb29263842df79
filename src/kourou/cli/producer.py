"""`kourou producer`: list of the connected producers."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession, query_brokers
from kourou.cli.options import TIMEOUT_DEFAULT_S, AsJson, Namesrv, Timeout
from kourou.client.administration.admin import AdminClient
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_group, check_topic
from kourou.protocol.codes import version_name
from kourou.protocol.connections import ProducerInfo

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List connected producers.",
)

LIST_HELP: Final = """\
List all live producers, with their groups and the time of their last heartbeat.

A producer that is connected to several brokers is listed once. It is listed from its first
heartbeat until two minutes after its last one.

\b
Examples:
  kourou producer list
  kourou producer list --broker broker-a --json
"""

CONNECTIONS_HELP: Final = """\
List the live producers of GROUP with their addresses.

\b
Examples:
  kourou producer connections shop
  kourou producer connections shop --topic orders
"""


@app.command("list", help=LIST_HELP, short_help="List all live producers.")
def list_producers(
    *,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="NAME", help="Only of this broker: name or HOST:PORT."),
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the producers."""
    found = AdminSession(namesrv, timeout).run(lambda admin: _producers(admin, broker))
    if as_json:
        output.print_json(
            [
                {
                    "group": group,
                    "client_id": one.client_id,
                    "address": _address(one),
                    "language": one.language.name,
                    "version": version_name(one.version),
                    "last_heartbeat_at_ms": one.last_update_timestamp,
                }
                for group, one in found
            ]
        )
        return
    output.print_table(
        ("GROUP", "PRODUCER", "ADDRESS", "LANGUAGE", "VERSION", "LAST HEARTBEAT"),
        [
            (
                group,
                one.client_id,
                _address(one),
                one.language.name,
                version_name(one.version),
                output.time_text(one.last_update_timestamp),
            )
            for group, one in found
        ],
    )


@app.command(help=CONNECTIONS_HELP, short_help="List the producers of one group.")
def connections(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Query only the brokers of this topic.")
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the group's producers."""
    check_group(group)
    if topic is not None:
        check_topic(topic)
    found = AdminSession(namesrv, timeout).run(
        lambda admin: admin.producer_connection(group, topic)
    )
    if as_json:
        output.print_json(
            [
                {
                    "client_id": one.client_id,
                    "address": one.client_addr,
                    "language": one.language.name,
                    "version": version_name(one.version),
                }
                for one in found
            ]
        )
        return
    if not found:
        output.print_line(f"{group}: no live producer")
        return
    output.print_table(
        ("PRODUCER", "ADDRESS", "LANGUAGE", "VERSION"),
        [
            (one.client_id, one.client_addr, one.language.name, version_name(one.version))
            for one in found
        ],
    )


async def _producers(admin: AdminClient, broker: str | None) -> list[tuple[str, ProducerInfo]]:
    """Return (group, producer), sorted; for each producer the latest information of all brokers."""
    answers = await query_brokers(
        admin, broker, lambda target: admin.producers(target.address), masters_only=True
    )
    latest: dict[tuple[str, str], ProducerInfo] = {}
    for groups in answers.values():
        for group, members in groups.items():
            for one in members:
                key = group, one.client_id
                seen = latest.get(key)
                if seen is None or seen.last_update_timestamp < one.last_update_timestamp:
                    latest[key] = one
    return [(group, latest[group, client]) for group, client in sorted(latest)]


def _address(producer: ProducerInfo) -> str:
    return producer.remote_ip.removeprefix("/")
