"""`kourou receive`: a topic's messages on the terminal or into a pipe, one a line."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED, say
from kourou.cli.message_show import JsonOrText, shower
from kourou.cli.options import Namesrv, TopicName, groups_to_complete
from kourou.cli.start_time import parse_start
from kourou.cli.tail import Tail, as_group, follow
from kourou.client.consuming.membership.subscriptions import subscription_of
from kourou.clock import SystemClock
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_client_group, check_topic

app = typer.Typer(rich_markup_mode=None, add_completion=False)

HELP: Final = """\
Print the messages of TOPIC, one a line, as they arrive; Ctrl-C ends it.

Without --group it looks on: every queue is read, nothing is committed, no other consumer is
affected. With --group it is a member of that consumer group: it gets its share, and what it
printed is done for the group. A broker that is gone is waited for, and so is a topic that does not
exist yet.

On a terminal a line is for people; in a pipe, or with --json, it is a JSON object with the whole
message: topic, broker, queue_id, queue_offset, msg_id, tags, keys, properties, born_at_ms,
store_at_ms, reconsume_times, body (or body_base64, where it is not UTF-8 text).

\b
Examples:
  kourou receive orders                          from now on
  kourou receive orders --from -1h --tag "eu || us"
  kourou receive orders --sql "amount > 5 AND region = 'eu'"
  kourou receive orders --from earliest --timeout 1 > orders.jsonl
  kourou receive orders --group billing --count 1 --timeout 30

Exit codes: 0 ended by --count or --timeout, 1 --timeout came before --count messages, 2 wrong
usage, 3 no server reached, 130 Ctrl-C or SIGTERM.
"""


_Group = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Consume as a member of this group.",
        autocompletion=groups_to_complete,
    ),
]


@app.command(help=HELP)
def receive(
    topic: TopicName,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="latest, earliest, a span before now (-15m, -1h, -2d), or a time "
            "(2025-01-31T12:00, epoch ms). For a group, only where it has committed nothing yet.",
        ),
    ] = "latest",
    group: _Group = None,
    tag: Annotated[str, typer.Option(metavar="TAGS", help='Only these tags, as "eu || us".')] = "*",
    sql: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help='Only what matches, as "amount > 5" (SQL92).'),
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after N messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="End when none came for so long."),
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    as_json: JsonOrText = None,
) -> None:
    """Read the options and print."""
    check_topic(topic)
    subscription_of(topic, tag, sql)  # what is wrong with it is said before anybody is asked
    if group is not None:
        check_client_group(group)
    tail = Tail(
        topic=topic,
        tags=tag,
        sql=sql,
        start=parse_start(start, SystemClock().now_ms()),
        count_max=count,
        idle_timeout_s=timeout,
        show=shower(as_json),
    )
    seen = asyncio.run(follow(tail, namesrv) if group is None else as_group(tail, group, namesrv))
    if count is not None and seen < count:
        say(f"{seen:,} of {output.counted(count, 'message')} came, then none for {timeout:g} s")
        raise typer.Exit(FAILED)
