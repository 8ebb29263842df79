"""`kourou group reset-offset`, `skip` and `clone-offsets`: changes of committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    DryRun,
    GroupName,
    Namesrv,
    Timeout,
    TopicName,
    Yes,
    confirm,
)
from kourou.cli.start_time import Start, parse_start
from kourou.client.administration.admin import AdminClient, OffsetReset
from kourou.clock import SystemClock
from kourou.errors import GroupNotFoundError, UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.queue import MessageQueue
from kourou.model.topic import check_group, check_topic

RESET_HELP: Final = """\
Set the offsets of GROUP in TOPIC: back, to receive messages again, or forward, to skip messages.

--to is earliest, latest, a span before now (-15m, -1h, -2d), a time (2025-01-31T12:00), or epoch
ms. Live members use the new offsets from their next pull on; messages that they have already pulled
may be delivered again. --dry-run shows the changes without making them.

\b
Examples:
  kourou group reset-offset billing orders --to -1h --dry-run
  kourou group reset-offset billing orders --to 2025-01-31T12:00
  kourou group reset-offset billing orders --broker broker-a --queue 3 --offset 1200
"""

SKIP_HELP: Final = """\
Set the offsets of GROUP to the end of TOPIC: the backlog is not delivered.

\b
Examples:
  kourou group skip billing orders --dry-run
  kourou group skip billing orders --yes
  kourou group skip billing '%RETRY%billing'       its pending redeliveries
"""

CLONE_HELP: Final = """\
Copy the offsets of the group SOURCE in TOPIC to the group DESTINATION.

DESTINATION need not exist. Stop its members before: a live member would keep its own offsets.

\b
Examples:
  kourou group clone-offsets billing billing-v2 orders
"""


def reset_offset(
    group: GroupName,
    topic: TopicName,
    *,
    to: Annotated[
        str | None, typer.Option(metavar="TIME", help="The new position; see above.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --queue: the broker that has it.")
    ] = None,
    queue: Annotated[
        int | None, typer.Option(metavar="ID", min=0, help="Only this queue of --broker.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The new queue offset.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Reset the group's offsets."""
    check_group(group)
    check_topic(topic)
    position = _position(topic, to, broker, queue, offset)
    _reset(
        AdminSession(namesrv, timeout),
        group,
        topic,
        position,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def skip(
    group: GroupName,
    topic: TopicName,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Skip the group's backlog."""
    check_group(group)
    check_topic(topic)
    _reset(
        AdminSession(namesrv, timeout),
        group,
        topic,
        {"to": Start.LATEST.value},
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def clone_offsets(
    source: Annotated[str, typer.Argument(metavar="SOURCE", show_default=False)],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", show_default=False)],
    topic: TopicName,
    *,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Clone the offsets."""
    for name in (source, destination):
        check_group(name)
    check_topic(topic)
    session = AdminSession(namesrv, timeout)
    members = session.run(lambda admin: members_of(admin, destination))
    if members:
        raise UsageError(
            f"{destination} has {output.counted(len(members), 'live member')}, which would keep "
            "their own offsets: stop them first"
        )
    confirm(
        f"Set the offsets of {destination} in {topic} to those of {source}",
        f"this replaces the offsets of {destination} in {topic}",
        yes=yes,
    )

    async def act(admin: AdminClient) -> int:
        await admin.describe_group(source)  # raises for an unknown group; the clone would not
        await admin.clone_offsets(source, destination, topic)
        offsets = (await admin.consume_stats(destination, topic)).offsets.values()
        return sum(max(0, at.broker_offset - at.consumer_offset) for at in offsets)

    lag = session.run(act)
    if as_json:
        output.print_json(
            {"source": source, "destination": destination, "topic": topic, "lag": lag}
        )
        return
    output.print_line(
        f"{destination}: has the offsets of {source} in {topic}, "
        f"{output.counted(lag, 'message')} behind"
    )


def _position(
    topic: str, to: str | None, broker: str | None, queue: int | None, offset: int | None
) -> dict[str, Any]:
    """Return the options as arguments of `AdminClient.reset_offset`.

    Raises:
        UsageError: the options contradict each other, or one is missing.
    """
    if (to is None) == (offset is None):
        raise UsageError("name the new position: --to, or --offset with --broker and --queue")
    if (broker is None) != (queue is None) or (offset is not None and queue is None):
        raise UsageError("--broker and --queue name one queue together: pass both")
    position: dict[str, Any] = {"offset": offset}
    if broker is not None and queue is not None:
        position["queue"] = MessageQueue(topic, broker, queue)
    if to is not None:
        start = parse_start(to, SystemClock().now_ms(), option="--to")
        position |= {"to": start.value} if isinstance(start, Start) else {"at_ms": start}
    return position


def _reset(
    session: AdminSession,
    group: str,
    topic: str,
    position: Mapping[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the planned changes, ask for confirmation, make them, and print them."""

    def run_reset(*, dry: bool) -> list[OffsetReset]:
        return session.run(lambda admin: admin.reset_offset(group, topic, dry_run=dry, **position))

    if dry_run or not yes:
        planned = run_reset(dry=True)
        if dry_run:
            _print_resets(group, topic, planned, dry_run=True, as_json=as_json)
            return
        confirm(
            f"{group}: {_summary(planned)} of {topic}. Continue",
            f"{group}: {_summary(planned)} of {topic}",
            yes=False,
        )
    _print_resets(group, topic, run_reset(dry=False), dry_run=False, as_json=as_json)


def _summary(resets: Sequence[OffsetReset]) -> str:
    """Return the effect of the changes, as `receives 12 messages again and skips 3 messages`."""
    again = -sum(min(0, reset.moved) for reset in resets)
    skipped = sum(max(0, reset.moved) for reset in resets)
    parts = []
    if again:
        parts.append(f"receives {output.counted(again, 'message')} again")
    if skipped:
        parts.append(f"skips {output.counted(skipped, 'message')}")
    return " and ".join(parts) or "repeats and skips no messages"


def _print_resets(
    group: str, topic: str, resets: Sequence[OffsetReset], *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        output.print_json(
            {
                "group": group,
                "topic": topic,
                "dry_run": dry_run,
                "queues": [
                    {
                        "broker": reset.queue.broker_name,
                        "queue_id": reset.queue.queue_id,
                        "old_offset": reset.old_offset,
                        "new_offset": reset.new_offset,
                    }
                    for reset in resets
                ],
            }
        )
        return
    output.print_table(
        ("BROKER", "QUEUE", "FROM", "TO", "MOVED"),
        [
            (
                reset.queue.broker_name,
                reset.queue.queue_id,
                reset.old_offset,
                reset.new_offset,
                reset.moved,
            )
            for reset in resets
        ],
    )
    output.print_line("")
    note = "; nothing is changed (--dry-run)" if dry_run else ""
    output.print_line(f"{group}: {_summary(resets)} of {topic}{note}")


async def members_of(admin: AdminClient, group: str) -> Sequence[str]:
    """Return the group's live members; empty if it does not exist."""
    try:
        return (await admin.describe_group(group)).members
    except GroupNotFoundError:
        return ()
