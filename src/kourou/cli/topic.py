"""`kourou topic`: list, create, change, describe and delete topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Final

import typer

from kourou.cli import output, topic_text
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    Namesrv,
    OnBroker,
    Timeout,
    TopicName,
    Yes,
    attribute_values,
    confirm,
)
from kourou.cli.progress import Progress
from kourou.cli.topic_text import Kind, TopicSummary, kind_of, summarize
from kourou.client.administration.admin import AdminClient
from kourou.errors import KourouError, TopicNotFoundError, UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.route import TopicRoute
from kourou.model.topic import PERM_READ, PERM_WRITE, TopicConfig, check_topic
from kourou.protocol.stats import TopicStatsTable

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List, create, change, describe and delete topics.",
)

ROUTES_AT_A_TIME: Final = 64
QUEUES_MAX: Final = 1_024
"""Maximum number of queues of a topic on one broker; each takes a directory and a file there."""


class Access(Enum):
    """`--access`: the permission of clients."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"


class MessageKind(Enum):
    """`--type`: the messages that a topic accepts from gRPC clients."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    PRIORITY = "priority"
    MIXED = "mixed"


_PERMS: Final = {
    Access.READ_WRITE: PERM_READ | PERM_WRITE,
    Access.READ: PERM_READ,
    Access.WRITE: PERM_WRITE,
}

Queues = Annotated[
    int | None,
    typer.Option("--queues", metavar="N", min=1, max=QUEUES_MAX, help="Queues on each broker."),
]
ReadQueues = Annotated[
    int | None,
    typer.Option("--read-queues", metavar="N", min=1, max=QUEUES_MAX, help="Queues for consumers."),
]
WriteQueues = Annotated[
    int | None,
    typer.Option(
        "--write-queues", metavar="N", min=1, max=QUEUES_MAX, help="Queues for producers."
    ),
]
AccessOption = Annotated[
    Access | None,
    typer.Option("--access", help="The permission of clients.", show_default=False),
]
Order = Annotated[
    bool | None,
    typer.Option(
        "--order/--no-order",
        help="Whether producers keep its queues while a broker is down. Name servers include this "
        "in routes if orderMessageEnable is on.",
        show_default=False,
    ),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="Set an attribute: message.type=FIFO."),
]

_TYPE: Final = "message.type"
TypeOption = Annotated[
    MessageKind | None,
    typer.Option(
        "--type",
        help="The messages that gRPC clients may send; normal ones if it was never set.",
        show_default=False,
    ),
]

LIST_HELP: Final = """\
List the topics that are registered with the name server.

System topics, and the retry and dead-letter topics of consumer groups (%RETRY%group, %DLQ%group),
are omitted unless --all is given.

\b
Examples:
  kourou topic list
  kourou topic list --all --json
  kourou topic list --cluster DefaultCluster
"""

CREATE_HELP: Final = """\
Create TOPIC on every broker, with 8 queues on each. Returns when the name server has the route.

If TOPIC exists on a broker, the given options change it, and everything else stays, including its
messages. A smaller --queues hides the messages of the removed queues.

\b
Examples:
  kourou topic create orders
  kourou topic create orders --queues 16
  kourou topic create payments --type fifo --order
"""

UPDATE_HELP: Final = """\
Change TOPIC on each broker that has it.

Only the given options are changed.

\b
To remove queues without hiding messages, first lower --write-queues, then
--read-queues once `kourou group describe` shows no lag in the removed queues.

\b
Examples:
  kourou topic update audit --access r                 no more sends
  kourou topic update orders --write-queues 4
  kourou topic update orders --type fifo
  kourou topic update orders --no-attribute message.type
"""

DESCRIBE_HELP: Final = """\
Show TOPIC on each broker, and the offsets of each of its queues.

OLDEST and NEXT are queue offsets: of the oldest stored message, and of the next one to be stored.

\b
Examples:
  kourou topic describe orders
  kourou topic describe %DLQ%billing --json
"""

ROUTE_HELP: Final = """\
Show the route of TOPIC, as clients receive it. Address 0 is the master.

\b
Examples:
  kourou topic route orders
  kourou topic route orders --json
"""

GROUPS_HELP: Final = """\
List the consumer groups that consume TOPIC or have consumed it.

\b
Examples:
  kourou topic groups orders
"""

DELETE_HELP: Final = """\
Delete TOPIC and its messages on every broker. This cannot be undone.

\b
Examples:
  kourou topic delete orders
  kourou topic delete orders --yes              without confirmation
"""


@app.command("list", help=LIST_HELP)
def list_topics(
    *,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Include system, retry and dead-letter topics.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the topics of this cluster.")
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the topics."""
    found = AdminSession(namesrv, timeout).run(
        lambda admin: _summaries(admin, cluster, show_all=show_all)
    )
    if as_json:
        output.print_json([topic_text.summary_json(topic) for topic in found])
    else:
        topic_text.print_summaries(found)


_Configs = dict[str, TopicConfig]


def _typed(attributes: dict[str, str], kind: MessageKind | None) -> dict[str, str]:
    """Return the attributes with that of `--type`.

    Raises:
        UsageError: both are given.
    """
    if kind is None:
        return attributes
    if _TYPE in attributes:
        raise UsageError(f"--type and --attribute {_TYPE} exclude each other: use --type")
    return {**attributes, _TYPE: kind.name}


@app.command(help=CREATE_HELP)
def create(
    topic: TopicName,
    *,
    queues: Queues = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    access: AccessOption = None,
    order: Order = None,
    kind: TypeOption = None,
    attribute: Attributes = None,
    broker: OnBroker = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only on the brokers of this cluster.")
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Create the topic and print its brokers."""
    check_topic(topic)
    attributes = _typed(attribute_values(attribute), kind)

    async def act(admin: AdminClient) -> tuple[TopicRoute, _Configs, _Configs]:
        before = await _configs(admin, topic)
        await admin.create_topic(
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=None if access is None else _PERMS[access],
            order=order,
            attributes=attributes,
            broker_name=broker,
            cluster=cluster,
        )
        after = await _configs(admin, topic) if before else {}
        return await admin.topic_route(topic), before, after

    route, before, after = AdminSession(namesrv, timeout).run(act)
    changes = topic_text.changes(before, after)
    _print_created(summarize(topic, Kind.OWN, route), sorted(before), changes, as_json=as_json)


def _print_created(
    line: TopicSummary,
    existing: list[str],
    changes: Mapping[str, Mapping[str, tuple[object, object]]],
    *,
    as_json: bool,
) -> None:
    """Print the brokers of a topic, and the changes on those that had it before."""
    if as_json:
        output.print_json(
            {
                "topic": line.name,
                "brokers": line.brokers,
                "queues": line.queues,
                "existed": bool(existing),
                "changes": changes,
            }
        )
        return
    brokers = ", ".join(line.brokers)
    output.print_line(f"{line.name}: {output.counted(line.queues, 'queue')} on {brokers}")
    if existing:
        changed = "changed" if changes else "nothing changed"
        output.print_line(f"it already existed on {', '.join(existing)}; {changed}")
    for broker, fields in changes.items():
        for field, (old, new) in fields.items():
            output.print_line(f"  {broker}: {field} {old} -> {new}")


async def _configs(admin: AdminClient, topic: str) -> _Configs:
    """Return the topic's config on each broker; empty after an error."""
    try:
        return await admin.topic_config(topic)
    except KourouError:
        return {}


@app.command(help=UPDATE_HELP)
def update(
    topic: TopicName,
    *,
    queues: Queues = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    access: AccessOption = None,
    order: Order = None,
    kind: TypeOption = None,
    attribute: Attributes = None,
    no_attribute: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Remove an attribute.")
    ] = None,
    broker: OnBroker = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Change the topic and print its new config."""
    check_topic(topic)
    attributes: dict[str, str | None] = dict.fromkeys(no_attribute or ())
    attributes |= _typed(attribute_values(attribute), kind)
    changes = (queues, read_queues, write_queues, access, order)
    if not attributes and all(option is None for option in changes):
        raise UsageError(
            "nothing to change: use --queues, --access, --order, --type or --attribute"
        )

    async def act(admin: AdminClient) -> dict[str, TopicConfig]:
        await admin.update_topic(
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=None if access is None else _PERMS[access],
            order=order,
            attributes=attributes,
            broker_name=broker,
        )
        return await admin.topic_config(topic)

    configs = AdminSession(namesrv, timeout).run(act)
    if as_json:
        output.print_json({"topic": topic, "brokers": topic_text.configs_json(configs)})
    else:
        topic_text.print_configs(configs)


@app.command(help=DESCRIBE_HELP)
def describe(
    topic: TopicName,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the topic's config and queues."""
    check_topic(topic)

    async def act(admin: AdminClient) -> tuple[dict[str, TopicConfig], TopicStatsTable]:
        configs, stats = await asyncio.gather(admin.topic_config(topic), admin.topic_stats(topic))
        return configs, stats

    configs, stats = AdminSession(namesrv, timeout).run(act)
    if as_json:
        output.print_json(
            {
                "topic": topic,
                "brokers": topic_text.configs_json(configs),
                "queues": topic_text.stats_json(stats),
                "put_tps": stats.topic_put_tps,
            }
        )
        return
    topic_text.print_configs(configs)
    output.print_line("")
    topic_text.print_stats(stats)


@app.command(help=ROUTE_HELP)
def route(
    topic: TopicName,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the topic's route."""
    check_topic(topic)
    found = AdminSession(namesrv, timeout).run(lambda admin: admin.topic_route(topic))
    if as_json:
        output.print_json({"topic": topic, **topic_text.route_json(found)})
    else:
        topic_text.print_route(found)


@app.command(help=GROUPS_HELP)
def groups(
    topic: TopicName,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the topic's groups, one per line."""
    check_topic(topic)
    found = AdminSession(namesrv, timeout).run(lambda admin: admin.topic_groups(topic))
    if as_json:
        output.print_json({"topic": topic, "groups": found})
    else:
        output.print_line("\n".join(found) or "no group has consumed this topic")


@app.command(help=DELETE_HELP)
def delete(
    topic: TopicName,
    *,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Delete the topic."""
    check_topic(topic)
    confirm(
        f"Delete {topic} and its messages on every broker",
        f"deleting {topic} deletes its messages",
        yes=yes,
    )
    AdminSession(namesrv, timeout).run(lambda admin: admin.delete_topic(topic))
    if as_json:
        output.print_json({"topic": topic, "deleted": True})
    else:
        output.print_line(f"{topic}: deleted")


async def _summaries(
    admin: AdminClient, cluster: str | None, *, show_all: bool
) -> list[TopicSummary]:
    """Return the topics, each with its route; omit topics that are deleted in the meantime."""
    names, info = await asyncio.gather(admin.topic_list(cluster), admin.cluster_info())
    # Each broker has system topics named like itself and its cluster, and one for replies.
    replies = (f"{name}_REPLY_TOPIC" for name in info.clusters)
    system = {*info.brokers, *info.clusters, *replies}
    kinds = {name: Kind.SYSTEM if name in system else kind_of(name) for name in names}
    shown = [name for name in names if show_all or kinds[name] is Kind.OWN]
    slots = asyncio.Semaphore(ROUTES_AT_A_TIME)

    async def fetch(name: str, progress: Progress) -> TopicSummary | None:
        async with slots:
            try:
                return summarize(name, kinds[name], await admin.topic_route(name))
            except TopicNotFoundError:
                return None
            finally:
                progress.advance()

    with Progress("topics", len(shown)) as progress:
        lines = await asyncio.gather(*(fetch(name, progress) for name in shown))
    return [line for line in lines if line is not None]
