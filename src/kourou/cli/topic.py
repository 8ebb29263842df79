"""`kourou topic`: list, create, describe and delete topics."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import NAMESRV_DEFAULT, TIMEOUT_DEFAULT_S, AsJson, Namesrv, Timeout
from kourou.client.admin import DEFAULT_QUEUES, AdminClient
from kourou.errors import TopicNotFoundError, UsageError
from kourou.model.route import TopicRoute
from kourou.model.topic import (
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    check_topic,
    format_perm,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from kourou.protocol.bodies import TopicStatsTable

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List, create, describe and delete topics.",
)

ROUTES_AT_A_TIME: Final = 64
QUEUES_MAX: Final = 1_024
"""Queues of a topic on one broker: each is a directory and a file there."""

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


class Kind(Enum):
    """What a topic is for, as its name says."""

    OWN = "own"
    """Made for messages of one's own programs."""
    RETRY = "retry"
    """What a consumer group gave back."""
    DLQ = "dlq"
    """What a consumer group failed on for good."""
    SYSTEM = "system"


class Access(Enum):
    """`--access`: what clients may do."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"


_PERMS: Final = {
    Access.READ_WRITE: PERM_READ | PERM_WRITE,
    Access.READ: PERM_READ,
    Access.WRITE: PERM_WRITE,
}

LIST_HELP: Final = """\
List the topics that the name server knows.

Topics of the system, and those of the retries and dead letters of consumer groups (%RETRY%group,
%DLQ%group), are left out unless --all is given.

\b
Examples:
  kourou topic list
  kourou topic list --all --json
"""

CREATE_HELP: Final = """\
Create TOPIC on every broker, or change it. Returns when the name server knows it.

Messages that lie in the queues stay; a smaller --queues hides those of the queues left out.

\b
Examples:
  kourou topic create orders
  kourou topic create orders --queues 16
  kourou topic create audit --access r          no more sends
"""

DESCRIBE_HELP: Final = """\
Show TOPIC on each broker, and what each of its queues holds.

OLDEST and NEXT are queue offsets: of the oldest message stored, and of the next one to come.

\b
Examples:
  kourou topic describe orders
  kourou topic describe %DLQ%billing --json
"""

DELETE_HELP: Final = """\
Delete TOPIC and its messages on every broker. This cannot be undone.

\b
Examples:
  kourou topic delete orders
  kourou topic delete orders --yes              without being asked
"""


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    kind: Kind
    brokers: tuple[str, ...]
    queues: int
    perm: int


@app.command("list", help=LIST_HELP)
def list_topics(
    *,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="System, retry and dead-letter topics too.")
    ] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the topics."""
    found = AdminSession(namesrv, timeout).ask(lambda admin: _listed(admin, show_all=show_all))
    if as_json:
        output.print_json(
            [
                {
                    "topic": topic.name,
                    "kind": topic.kind.value,
                    "brokers": topic.brokers,
                    "queues": topic.queues,
                    "perm": format_perm(topic.perm),
                }
                for topic in found
            ]
        )
        return
    output.print_table(
        ("TOPIC", "KIND", "QUEUES", "ACCESS", "BROKERS"),
        [(t.name, t.kind.value, t.queues, format_perm(t.perm), " ".join(t.brokers)) for t in found],
    )


@app.command(help=CREATE_HELP)
def create(
    topic: TopicName,
    *,
    queues: Annotated[
        int, typer.Option(metavar="N", min=1, max=QUEUES_MAX, help="Queues on each broker.")
    ] = DEFAULT_QUEUES,
    access: Annotated[Access, typer.Option(help="What clients may do.")] = Access.READ_WRITE,
    broker: Annotated[str | None, typer.Option(metavar="NAME", help="Only on this broker.")] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Create the topic and print where it is."""
    check_topic(topic)

    async def act(admin: AdminClient) -> TopicRoute:
        await admin.create_topic(topic, queues=queues, perm=_PERMS[access], broker_name=broker)
        return await admin.topic_route(topic)

    route = AdminSession(namesrv, timeout).ask(act)
    listed = _describe_route(topic, Kind.OWN, route)
    if as_json:
        output.print_json({"topic": topic, "brokers": listed.brokers, "queues": listed.queues})
        return
    output.print_line(
        f"{topic}: {output.counted(listed.queues, 'queue')} on {', '.join(listed.brokers)}"
    )


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

    configs, stats = AdminSession(namesrv, timeout).ask(act)
    if as_json:
        output.print_json(_description_json(topic, configs, stats))
    else:
        _print_description(configs, stats)


@app.command(help=DELETE_HELP)
def delete(
    topic: TopicName,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Delete the topic."""
    check_topic(topic)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"deleting {topic} deletes its messages: give --yes to say so")
        typer.confirm(f"Delete {topic} and its messages on every broker?", abort=True, err=True)
    AdminSession(namesrv, timeout).ask(lambda admin: admin.delete_topic(topic))
    if as_json:
        output.print_json({"topic": topic, "deleted": True})
    else:
        output.print_line(f"{topic}: deleted")


async def _listed(admin: AdminClient, *, show_all: bool) -> list[_Listed]:
    """Return the topics, each with its route; one that is deleted meanwhile is left out."""
    names, cluster = await asyncio.gather(admin.topic_list(), admin.cluster_info())
    # Each broker has topics of its own name and of its cluster's, and one for replies.
    replies = (f"{name}_REPLY_TOPIC" for name in cluster.clusters)
    system = {*cluster.brokers, *cluster.clusters, *replies}
    kinds = {name: Kind.SYSTEM if name in system else kind_of(name) for name in names}
    turn = asyncio.Semaphore(ROUTES_AT_A_TIME)

    async def look(name: str) -> _Listed | None:
        async with turn:
            try:
                return _describe_route(name, kinds[name], await admin.topic_route(name))
            except TopicNotFoundError:
                return None

    shown = [name for name in names if show_all or kinds[name] is Kind.OWN]
    return [found for found in await asyncio.gather(*map(look, shown)) if found is not None]


def kind_of(topic: str) -> Kind:
    """Return what a topic is for, by its name alone."""
    if is_retry_topic(topic):
        return Kind.RETRY
    if is_dlq_topic(topic):
        return Kind.DLQ
    return Kind.SYSTEM if is_system_topic(topic) else Kind.OWN


def _describe_route(name: str, kind: Kind, route: TopicRoute) -> _Listed:
    queues = route.queue_datas
    perm = 0
    for data in queues:
        perm |= data.perm
    return _Listed(
        name,
        kind,
        tuple(sorted(data.broker_name for data in queues)),
        sum(max(data.read_queue_nums, data.write_queue_nums) for data in queues),
        perm,
    )


def _print_description(configs: dict[str, TopicConfig], stats: TopicStatsTable) -> None:
    output.print_table(
        ("BROKER", "READ QUEUES", "WRITE QUEUES", "ACCESS", "ORDERED"),
        [
            (name, c.read_queue_nums, c.write_queue_nums, format_perm(c.perm), c.order)
            for name, c in sorted(configs.items())
        ],
    )
    output.print_line("")
    output.print_table(
        ("BROKER", "QUEUE", "OLDEST", "NEXT", "MESSAGES", "LAST STORED"),
        [
            (
                queue.broker_name,
                queue.queue_id,
                held.min_offset,
                held.max_offset,
                held.max_offset - held.min_offset,
                output.time_text(held.last_update_timestamp),
            )
            for queue, held in stats.offsets.items()
        ],
    )
    total = sum(held.max_offset - held.min_offset for held in stats.offsets.values())
    output.print_line("")
    output.print_line(output.counted(total, "message"))


def _description_json(
    topic: str, configs: dict[str, TopicConfig], stats: TopicStatsTable
) -> dict[str, object]:
    return {
        "topic": topic,
        "brokers": [
            {
                "broker": name,
                "read_queues": config.read_queue_nums,
                "write_queues": config.write_queue_nums,
                "perm": format_perm(config.perm),
                "order": config.order,
                "attributes": dict(config.attributes),
            }
            for name, config in sorted(configs.items())
        ],
        "queues": [
            {
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "min_offset": held.min_offset,
                "max_offset": held.max_offset,
                "last_store_at_ms": held.last_update_timestamp or None,
            }
            for queue, held in stats.offsets.items()
        ],
    }
