"""`kourou dlq`: list, show and redrive the dead letters of a consumer group."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession, admin_config
from kourou.cli.exits import UNREACHABLE, one_line, print_stderr
from kourou.cli.group_offsets import members_of
from kourou.cli.message_search import find_messages
from kourou.cli.message_text import details_json, instant_text, position_text, print_details
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    GroupName,
    MessageId,
    Namesrv,
    Timeout,
    Yes,
    confirm,
)
from kourou.cli.progress import Progress
from kourou.cli.start_time import Start, parse_span
from kourou.client.administration.admin import AdminClient, DeadMessage, Redrive
from kourou.client.administration.admin_dead_letters import DEAD_LETTERS_DEFAULT
from kourou.client.send_receipt import SendReceipt
from kourou.clock import SystemClock
from kourou.errors import UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.message import MessageExt
from kourou.model.topic import check_group, dlq_topic

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List and show the dead letters of a consumer group, and send them again.",
)

LIST_HELP: Final = """\
List the dead letters of GROUP: messages that failed in all of their deliveries, or that a consumer
rejected permanently.

They are listed in the order in which they became dead letters. They stay until the broker's
retention deletes them, even after they are sent again. REASON is given by Kourou's consumers only.

\b
Examples:
  kourou dlq list billing
  kourou dlq list billing --from -1h --count 500 --json
"""

SHOW_HELP: Final = """\
Show all details of one dead letter of GROUP.

MESSAGE is its id or its position (BROKER/QUEUE@OFFSET), as `kourou dlq list` prints them. If a
message became a dead letter more than once, an id shows all of these dead letters.

\b
Examples:
  kourou dlq show billing 7F0000010001F00D6B2E0A1B2C3D0000
  kourou dlq show billing broker-a/0@17
"""

REDRIVE_HELP: Final = """\
Send dead letters of GROUP again, with their delivery counts reset: one of them, or with --all every
one that was not sent again before.

Only GROUP receives them, as messages of their original topic. With --topic they are sent to that
topic itself, and so to all its groups. With Java brokers, use --topic for a group that consumes in
order.

The command can be repeated. The brokers store the progress of --all, and a message that was sent
again before, by --all or --id, is found by its id and skipped. After an error, Ctrl-C or a crash,
the same command continues. A broker that cannot be connected to is reported and skipped, and the
exit code is 3. Two commands at the same time may send a message twice.

\b
Examples:
  kourou dlq redrive billing --all
  kourou dlq redrive billing --id 7F0000010001F00D6B2E0A1B2C3D0000
  kourou dlq redrive billing --id broker-a/0@17 --topic --again
"""


@app.command("list", help=LIST_HELP, short_help="List the dead letters of a group.")
def list_dead_letters(
    group: GroupName,
    *,
    start: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="Only dead letters since this time.")
    ] = "earliest",
    count: Annotated[
        int, typer.Option(metavar="N", min=1, help="List at most N.")
    ] = DEAD_LETTERS_DEFAULT,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the dead letters."""
    check_group(group)
    begin, _ = parse_span(start, "now", SystemClock().now_ms())
    begin_ms = 0 if isinstance(begin, Start) else begin
    found = AdminSession(namesrv, timeout).run(
        lambda admin: admin.dead_letters(group, begin_ms=begin_ms, max_messages=count)
    )
    if as_json:
        output.print_json([_json(dead) for dead in found])
        return
    output.print_table(
        ("DIED", "STORED AT", "ID", "TOPIC", "TRIES", "REDRIVEN", "REASON"),
        [
            (
                instant_text(dead.died_at_ms),
                position_text(dead.message),
                dead.message.msg_id,
                dead.topic,
                dead.deliveries,
                "yes" if dead.is_redriven else "",
                one_line(dead.reason or ""),
            )
            for dead in found
        ],
    )
    if not found:
        print_stderr(f"{group} has no dead letters" + (f" since {start}" if begin_ms else ""))
    elif len(found) == count:
        print_stderr(f"there may be more: use --count {10 * count}, or --from with a later time")


@app.command(help=SHOW_HELP, short_help="Show one dead letter.")
def show(
    group: GroupName,
    message: MessageId,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the dead letter."""
    check_group(group)
    messages = AdminSession(namesrv, timeout).run(
        lambda admin: find_messages(admin, dlq_topic(group), message.strip())
    )
    deaths = [DeadMessage(group, one) for one in messages]
    if as_json:
        output.print_json([details_json(dead.message, None) | _death(dead) for dead in deaths])
        return
    for index, dead in enumerate(deaths):
        if index:
            output.print_line("")
        deliveries = output.counted(dead.deliveries, "time")
        output.print_line(f"Sent to {one_line(dead.topic)}, failed {deliveries}")
        output.print_line(f"Reason: {one_line(dead.reason or 'unknown')}")
        output.print_line("")
        print_details(dead.message, None)


@app.command(help=REDRIVE_HELP, short_help="Send one or all dead letters again.")
def redrive(
    group: GroupName,
    *,
    message: Annotated[
        str | None, typer.Option("--id", metavar="MESSAGE", help="One dead letter, as for `show`.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All that were not sent again before.")
    ] = False,
    to_topic: Annotated[
        bool, typer.Option("--topic", help="Send to the original topic, for all its groups.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With --id: even if it was sent again before.")
    ] = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again."""
    check_group(group)
    if every == (message is not None):
        raise UsageError("use either --id MESSAGE or --all")
    if again and every:
        raise UsageError("--again applies to one message: use --id instead of --all")
    session = AdminSession(namesrv, timeout)
    if message is not None:
        _print_redriven(
            session.run(lambda admin: _redrive_one(admin, group, message, to_topic, again))
        )
        return
    destination = "to their topics, for all groups" if to_topic else f"to {group}"
    confirm(
        f"Send all dead letters of {group} again, {destination}",
        f"all dead letters of {group} are sent again, {destination}",
        yes=yes,
    )

    with Progress("dead letters", 0, is_shown=sys.stderr.isatty()) as progress:
        done = asyncio.run(_redrive_all(group, namesrv, timeout, to_topic, progress.reach))
    _print_all(done, as_json=as_json)
    if done.left:
        raise typer.Exit(UNREACHABLE)
    may_wait = done.sent and not to_topic and not as_json
    if may_wait and not session.run(lambda admin: members_of(admin, group)):
        print_stderr(f"no member of {group} is connected: they are delivered once one connects")


async def _redrive_all(
    group: str,
    namesrv: str,
    timeout_s: float,
    to_topic: bool,
    on_progress: Callable[[int, int], None],
) -> Redrive:
    """Redrive all dead letters; the timeout applies to each request."""
    async with AdminClient(namesrv, config=admin_config(timeout_s)) as admin:
        return await admin.redrive_all(group, to_topic=to_topic, on_progress=on_progress)


async def _redrive_one(
    admin: AdminClient,
    group: str,
    text: str,
    to_topic: bool,
    again: bool,
) -> tuple[MessageExt, SendReceipt | None]:
    """Redrive the latest dead letter of the message."""
    deaths = await find_messages(admin, dlq_topic(group), text.strip())
    return deaths[-1], await admin.redrive(group, deaths[-1], to_topic=to_topic, again=again)


def _print_redriven(done: tuple[MessageExt, SendReceipt | None]) -> None:
    message, receipt = done
    if receipt is None:
        print_stderr(f"{message.msg_id} was sent again before: use --again to send it once more")
        return
    queue = receipt.queue
    output.print_line(
        f"{message.msg_id} -> {queue.topic} "
        f"{queue.broker_name}/{queue.queue_id}@{receipt.queue_offset}"
    )


def _print_all(done: Redrive, *, as_json: bool) -> None:
    if as_json:
        left = {name: str(error) for name, error in done.left.items()}
        output.print_json(
            {
                "sent": done.sent,
                "skipped": done.skipped,
                "unchecked": done.unchecked,
                "left": left,
            }
        )
    else:
        text = f"{output.counted(done.sent, 'dead letter')} sent again"
        skipped = f", {done.skipped} skipped: sent again before" if done.skipped else ""
        output.print_line(text + skipped)
    if done.unchecked:
        print_stderr(
            f"{done.unchecked} sent without a look-up of earlier redrives, because a broker has no "
            "index or did not answer: sent twice if they were redriven by --id before"
        )
    for name, error in done.left.items():
        print_stderr(f"Error: dead letters on {name} were not sent: {one_line(str(error))}")
    if done.left:
        print_stderr("  repeat the command to send them")


def _json(dead: DeadMessage) -> Mapping[str, object]:
    return {
        "msg_id": dead.message.msg_id,
        "stored_at": position_text(dead.message),
        "is_redriven": dead.is_redriven,
        **_death(dead),
    }


def _death(dead: DeadMessage) -> dict[str, object]:
    return {
        "origin_topic": dead.topic,
        "deliveries": dead.deliveries,
        "died_at_ms": dead.died_at_ms,
        "reason": dead.reason,
    }
