"""`kourou namesrv`: options, key-value configuration and write permissions of name servers."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    BrokerName,
    Namesrv,
    Timeout,
    key_values,
)
from kourou.client.administration.admin import AdminClient
from kourou.errors import NoRouteError
from kourou.model.host import NAMESRV_DEFAULT

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Configure name servers, and take brokers out of service.",
)
kv = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Read and write the key-value configuration.",
)
app.add_typer(kv, name="kv")

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]

CONFIG_HELP: Final = """\
Show the options of each name server.

\b
Examples:
  kourou namesrv config
  kourou namesrv config --json
"""

SET_HELP: Final = """\
Change options of all name servers.

The changes last until a name server stops; its start configuration stays the same. An option that
cannot be changed is refused with a list of those that can.

\b
Examples:
  kourou namesrv set orderMessageEnable=true
"""

WIPE_HELP: Final = """\
Take BROKER out of service for producers.

Producers stop sending to it when they next refresh the route, within 30 s. Its messages can still
be consumed.

\b
This lasts until `kourou namesrv add-write-perm`, or until the broker
registers a change of its topics. To close a topic permanently:
`kourou topic update TOPIC --access r --broker BROKER`

\b
Examples:
  kourou namesrv wipe-write-perm broker-b
"""

ADD_HELP: Final = """\
Return BROKER to service for producers.

\b
Examples:
  kourou namesrv add-write-perm broker-b
"""


@app.command(help=CONFIG_HELP)
def config(
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the options."""
    found = AdminSession(namesrv, timeout).run(lambda admin: admin.namesrv_config())
    if as_json:
        output.print_json(
            [{"namesrv": address, "config": values} for address, values in found.items()]
        )
        return
    output.print_table(
        ("NAME SERVER", "OPTION", "VALUE"),
        [
            (address, key, value)
            for address, values in found.items()
            for key, value in sorted(values.items())
        ],
    )


@app.command("set", help=SET_HELP)
def set_options(
    options: Annotated[list[str], typer.Argument(metavar="OPTION=VALUE...", show_default=False)],
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Change the options."""
    values = key_values(options, "option")
    AdminSession(namesrv, timeout).run(lambda admin: admin.update_namesrv_config(values))
    if as_json:
        output.print_json({"config": values})
        return
    for key, value in values.items():
        output.print_line(f"{key}={value}: set on all name servers until they stop")


@app.command(help=WIPE_HELP)
def wipe_write_perm(
    broker: BrokerName,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Take the broker out of service for producers."""

    async def act(admin: AdminClient) -> dict[str, int]:
        await _check_broker(admin, broker)
        return await admin.wipe_write_perm(broker)

    results = AdminSession(namesrv, timeout).run(act)
    _print_topics(broker, results, "no longer writable", as_json=as_json)


@app.command(help=ADD_HELP)
def add_write_perm(
    broker: BrokerName,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Return the broker to service for producers."""

    async def act(admin: AdminClient) -> dict[str, int]:
        await _check_broker(admin, broker)
        return await admin.add_write_perm(broker)

    results = AdminSession(namesrv, timeout).run(act)
    _print_topics(broker, results, "writable again", as_json=as_json)


GET_HELP: Final = """\
Print the value of KEY.

\b
Examples:
  kourou namesrv kv get ORDER_TOPIC_CONFIG orders
"""

LIST_HELP: Final = """\
List the keys and values of NAMESPACE.

\b
Examples:
  kourou namesrv kv list ORDER_TOPIC_CONFIG
"""

PUT_HELP: Final = """\
Set KEY on all name servers; they store it on disk.

\b
Examples:
  kourou namesrv kv put ORDER_TOPIC_CONFIG orders "broker-a:4;broker-b:4"
"""

DELETE_HELP: Final = """\
Remove KEY from all name servers; an unknown key is not an error.

\b
Examples:
  kourou namesrv kv delete ORDER_TOPIC_CONFIG orders
"""


@kv.command(help=GET_HELP)
def get(
    namespace: Namespace,
    key: Key,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the value."""
    value = AdminSession(namesrv, timeout).run(lambda admin: admin.kv_get(namespace, key))
    if as_json:
        output.print_json({"namespace": namespace, "key": key, "value": value})
    else:
        output.print_line(value)


@kv.command("list", help=LIST_HELP)
def list_keys(
    namespace: Namespace,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the keys and values."""
    values = AdminSession(namesrv, timeout).run(lambda admin: admin.kv_list(namespace))
    if as_json:
        output.print_json({"namespace": namespace, "values": values})
    else:
        output.print_table(("KEY", "VALUE"), list(values.items()))


@kv.command(help=PUT_HELP)
def put(
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", show_default=False)],
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Set the value."""
    AdminSession(namesrv, timeout).run(lambda admin: admin.kv_put(namespace, key, value))
    if as_json:
        output.print_json({"namespace": namespace, "key": key, "value": value})
    else:
        output.print_line(f"{namespace} {key}: set")


@kv.command(help=DELETE_HELP)
def delete(
    namespace: Namespace,
    key: Key,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Remove the key."""
    AdminSession(namesrv, timeout).run(lambda admin: admin.kv_delete(namespace, key))
    if as_json:
        output.print_json({"namespace": namespace, "key": key, "deleted": True})
    else:
        output.print_line(f"{namespace} {key}: deleted")


async def _check_broker(admin: AdminClient, name: str) -> None:
    """Refuse an unregistered broker, for which name servers would report success without effect."""
    brokers = (await admin.cluster_info()).brokers
    if name not in brokers:
        raise NoRouteError(
            f"no broker {name} is registered; registered brokers: "
            f"{', '.join(sorted(brokers)) or 'none'}"
        )


def _print_topics(broker: str, results: dict[str, int], effect: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {
                "broker": broker,
                "name_servers": [
                    {"namesrv": address, "topics": topics} for address, topics in results.items()
                ],
            }
        )
        return
    for address, topics in results.items():
        output.print_line(f"{broker}: {output.counted(topics, 'topic')} {effect} on {address}")
