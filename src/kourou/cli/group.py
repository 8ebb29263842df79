"""`kourou group`: consumer groups and their offsets."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kourou.cli import group_changes, group_members, group_modes, group_offsets, output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    GroupName,
    Namesrv,
    Timeout,
)
from kourou.client.administration.admin import AdminClient, GroupDescription, GroupPops
from kourou.model.group import SubscriptionGroup
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import TOOLS_GROUP, check_group, is_system_group

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List consumer groups with their lag, reset their offsets, change and delete them.",
)

LIST_HELP: Final = """\
List the consumer groups, with their live members and their lag.

The lag is the number of stored messages that the group has not committed, in all queues for which
it has committed offsets or subscriptions, including its retry topic.

\b
Examples:
  kourou group list
  kourou group list --json
"""

DESCRIBE_HELP: Final = """\
Show the members of GROUP, and its offsets in each queue.

Each live member is listed with the address, language and version of its client.

COMMITTED is the queue offset of the group's next message, NEXT the offset of the next message to be
stored; LAG is the difference. Messages that are being handled count as lag. LOCKED BY is the member
that has locked the queue, in a group that consumes in order. The lock expires a minute after its
member crashed. If the subscriptions of members differ, they are listed: make them equal.

IN FLIGHT is the number of messages that members have popped and not settled; they are behind
COMMITTED, and LAG does not count them. MODE is how members read a topic if brokers assign their
queues: `kourou group set-mode` changes it. The lag of revival is how late a broker makes messages
visible again that were popped and not acknowledged. Only Kourou's brokers report messages in flight
and the time of that lag.

\b
Examples:
  kourou group describe billing
  kourou group describe billing --settings
  kourou group describe billing --json
"""


@app.command("list", help=LIST_HELP, short_help="List the groups with their members and lag.")
def list_groups(
    *,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Include system groups.")] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the groups."""
    every = AdminSession(namesrv, timeout).run(lambda admin: admin.describe_groups())
    found = [one for one in every if show_all or not _is_system(one.group)]
    if as_json:
        output.print_json(
            [
                {
                    "group": g.group,
                    "members": len(g.members),
                    "lag": g.lag,
                    "topics": sorted({queue.topic for queue in g.offsets}),
                }
                for g in found
            ]
        )
        return
    output.print_table(
        ("GROUP", "MEMBERS", "LAG", "TOPICS"),
        [
            (g.group, len(g.members), g.lag, " ".join(sorted({q.topic for q in g.offsets})))
            for g in found
        ],
    )


@app.command(help=DESCRIBE_HELP, short_help="Show the members and offsets of a group.")
def describe(
    group: GroupName,
    *,
    settings: Annotated[bool, typer.Option("--settings", help="Include its settings.")] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the group's members and offsets."""
    check_group(group)

    async def act(
        admin: AdminClient,
    ) -> tuple[GroupDescription, GroupPops, dict[str, SubscriptionGroup]]:
        description = await admin.describe_group(group)
        pops = await admin.group_pops(group)
        return description, pops, await admin.group_config(group) if settings or as_json else {}

    found, pops, configs = AdminSession(namesrv, timeout).run(act)
    if as_json:
        output.print_json(_description_json(found, configs) | group_modes.pops_json(pops))
        return
    _print_description(found)
    group_modes.print_pops(found, pops)
    if settings:
        output.print_line("")
        group_changes.print_settings(configs)


def _is_system(group: str) -> bool:
    return is_system_group(group) or group == TOOLS_GROUP


def _print_description(found: GroupDescription) -> None:
    if found.connections:
        group_members.print_connections(found.connections)
    else:
        output.print_line("no live member")
    group_members.print_differences(found.differences)
    output.print_line("")
    heads = ["TOPIC", "BROKER", "QUEUE", "COMMITTED", "NEXT", "LAG", "LAST CONSUMED"]
    has_locks = any(at.lock_holder for at in found.offsets.values())
    is_popped = any(at.in_flight for at in found.offsets.values())
    rows = [
        (
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            at.consumer_offset,
            at.broker_offset,
            at.broker_offset - at.consumer_offset,
            output.time_text(at.last_timestamp),
            *([at.in_flight or 0] if is_popped else []),
            *([at.lock_holder or ""] if has_locks else []),
        )
        for queue, at in found.offsets.items()
    ]
    heads += ["IN FLIGHT"] * is_popped + ["LOCKED BY"] * has_locks
    output.print_table(heads, rows)
    output.print_line("")
    output.print_line(f"{output.counted(found.lag, 'message')} behind")


def _description_json(
    found: GroupDescription, configs: dict[str, SubscriptionGroup]
) -> dict[str, object]:
    return {
        "group": found.group,
        "members": list(found.members),
        "connections": group_members.connections_json(found.connections),
        "subscriptions_differ": list(found.differences),
        "lag": found.lag,
        "consume_tps": found.consume_tps,
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "committed_offset": at.consumer_offset,
                "max_offset": at.broker_offset,
                "lag": at.broker_offset - at.consumer_offset,
                "last_consumed_store_at_ms": at.last_timestamp or None,
                "locked_by": at.lock_holder,
                "in_flight": at.in_flight or 0,
                "blocked": at.block_reason,
            }
            for queue, at in found.offsets.items()
        ],
        "settings": group_changes.settings_json(configs),
    }


app.command("create", help=group_changes.CREATE_HELP, short_help="Create a group.")(
    group_changes.create
)
app.command("update", help=group_changes.UPDATE_HELP, short_help="Change settings of a group.")(
    group_changes.update
)
app.command("delete", help=group_changes.DELETE_HELP, short_help="Delete a group.")(
    group_changes.delete
)
app.command(
    "set-mode", help=group_modes.SET_MODE_HELP, short_help="Choose pull or pop for a topic."
)(group_modes.set_mode)
app.command(
    "connections",
    help=group_members.CONNECTIONS_HELP,
    short_help="List members and subscriptions of a group.",
)(group_members.connections)
app.command(
    "running-info",
    help=group_members.RUNNING_INFO_HELP,
    short_help="Show queues and rates of members.",
)(group_members.running_info)
app.command(
    "reset-offset",
    help=group_offsets.RESET_HELP,
    short_help="Set the offsets of a group to a time or offset.",
)(group_offsets.reset_offset)
app.command("skip", help=group_offsets.SKIP_HELP, short_help="Skip the backlog of a topic.")(
    group_offsets.skip
)
app.command(
    "clone-offsets",
    help=group_offsets.CLONE_HELP,
    short_help="Copy the offsets of another group.",
)(group_offsets.clone_offsets)
