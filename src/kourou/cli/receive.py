"""`kourou receive`: print the messages of a topic, one per line."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED, print_stderr
from kourou.cli.message_show import JsonOrText, message_printer
from kourou.cli.options import Namesrv, TopicName, groups_to_complete
from kourou.cli.start_time import parse_start
from kourou.cli.tail import Tail, consume_as_member, follow
from kourou.client.consuming.membership.subscriptions import subscription_of
from kourou.clock import SystemClock
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_client_group, check_topic

app = typer.Typer(rich_markup_mode=None, add_completion=False)

HELP: Final = """\
Print the messages of TOPIC, one per line, as they arrive, until Ctrl-C.

Without --group, the command reads every queue, commits nothing and affects no other consumer. With
--group, it is a member of that consumer group: it receives the messages of its assigned queues, and
acknowledges each message after printing it. The command waits for brokers that do not answer, and
for a topic that does not exist yet.

On a terminal each message is a line of text; in a pipe, or with --json, it is a JSON object with
the members topic, broker, queue_id, queue_offset, msg_id, tags, keys, properties, born_at_ms,
store_at_ms, reconsume_times and body (or body_base64, if the body is not UTF-8 text).

\b
Examples:
  kourou receive orders                          from now on
  kourou receive orders --from -1h --tag "eu || us"
  kourou receive orders --sql "amount > 5 AND region = 'eu'"
  kourou receive orders --from earliest --timeout 1 > orders.jsonl
  kourou receive orders --group billing --count 1 --timeout 30

Exit codes: 0 ended by --count or --timeout, 1 --timeout passed before --count messages, 2 wrong
usage, 3 no server answered, 130 Ctrl-C or SIGTERM.
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
            "(2025-01-31T12:00, epoch ms). A group uses it only without a committed offset.",
        ),
    ] = "latest",
    group: _Group = None,
    tag: Annotated[str, typer.Option(metavar="TAGS", help='Only these tags: "eu || us".')] = "*",
    sql: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help='Only messages that match: "amount > 5" (SQL92).'),
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after N messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="End after this time without a message."),
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    as_json: JsonOrText = None,
) -> None:
    """Read the options and print."""
    check_topic(topic)
    subscription_of(topic, tag, sql)  # validates the expressions before connecting
    if group is not None:
        check_client_group(group)
    tail = Tail(
        topic=topic,
        tags=tag,
        sql=sql,
        start=parse_start(start, SystemClock().now_ms()),
        count_max=count,
        idle_timeout_s=timeout,
        show=message_printer(as_json),
    )
    seen = asyncio.run(
        follow(tail, namesrv) if group is None else consume_as_member(tail, group, namesrv)
    )
    if count is not None and seen < count:
        print_stderr(
            f"received {seen:,} of {output.counted(count, 'message')}, then none for {timeout:g} s"
        )
        raise typer.Exit(FAILED)
