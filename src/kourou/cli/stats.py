"""`kourou stats`: send and consume rates of topics and groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import TIMEOUT_DEFAULT_S, AsJson, Namesrv, Timeout
from kourou.client.administration.admin import AdminClient, TopicRates
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_topic, is_system_group, is_system_topic
from kourou.protocol.routes import ClusterInfo

app = typer.Typer(rich_markup_mode=None, add_completion=False)

HELP: Final = """\
Show send and consume rates: one row for each topic and group.

IN/S and OUT/S are messages per second over the last minute; brokers sample every 10 s. The 24-hour
columns begin at the start of the broker, if that is more recent. LAG is the number of messages that
the group has not consumed.

\b
Examples:
  kourou stats
  kourou stats orders '%RETRY%billing'
  kourou stats --active --json                     only topics and groups in use
"""


@app.command(help=HELP)
def stats(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", show_default=False)
    ] = None,
    *,
    active: Annotated[
        bool, typer.Option("--active", help="Only rows with messages in the last 24 hours.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Include system topics and groups.")
    ] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the rates."""
    for topic in topics or ():
        check_topic(topic)

    async def act(admin: AdminClient) -> tuple[list[TopicRates], ClusterInfo]:
        return await admin.all_stats(topics or None), await admin.cluster_info()

    rates, cluster = AdminSession(namesrv, timeout).run(act)
    broker_topics = _topics_of_brokers(cluster)
    rows = [
        row
        for row in rates
        if (row.in_24h or row.out_24h or not active)
        and (topics or show_all or not (row.topic in broker_topics or _is_system(row)))
    ]
    if as_json:
        output.print_json([asdict(row) for row in rows])
        return
    output.print_table(
        ("TOPIC", "GROUP", "LAG", "IN/S", "OUT/S", "IN 24 H", "OUT 24 H"),
        [
            (
                row.topic,
                row.group,
                row.lag,
                f"{row.in_tps:.2f}",
                f"{row.out_tps:.2f}",
                row.in_24h,
                row.out_24h,
            )
            for row in rows
        ],
    )


def _topics_of_brokers(cluster: ClusterInfo) -> set[str]:
    """Return the topics that brokers create for themselves: named like brokers and clusters."""
    replies = (f"{name}_REPLY_TOPIC" for name in cluster.clusters)
    return {*cluster.brokers, *cluster.clusters, *replies}


def _is_system(row: TopicRates) -> bool:
    return is_system_topic(row.topic) or (row.group is not None and is_system_group(row.group))
