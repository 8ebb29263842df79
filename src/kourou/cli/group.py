"""`kourou group`: consumer groups, their members and their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from kourou.cli import group_changes, group_modes, group_offsets, output
from kourou.cli.admin_session import AdminSession
from kourou.cli.exits import FAILED, one_line, print_stderr
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    GroupName,
    Namesrv,
    Timeout,
)
from kourou.client.administration.admin import AdminClient, GroupDescription, GroupPops
from kourou.errors import KourouError
from kourou.model.group import SubscriptionGroup
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import TOOLS_GROUP, check_group, is_system_group
from kourou.protocol.codes import version_name
from kourou.protocol.connections import ConsumerConnection
from kourou.protocol.running_info import ConsumerRunningInfo

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
    if found.members:
        output.print_table(("MEMBER",), [(member,) for member in found.members])
    else:
        output.print_line("no live member")
    print_differences(found.differences)
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


MEMBERS_AT_A_TIME: Final = 16
RUNNING_TIMEOUT_S: Final = 12.0
"""More than the 10 s for which a broker waits for a member's answer."""

CONNECTIONS_HELP: Final = """\
List the live members of GROUP with their addresses and subscriptions.

\b
Examples:
  kourou group connections billing
  kourou group connections billing --json
"""

RUNNING_INFO_HELP: Final = """\
Show the assigned queues and the consumption rates of the live members of GROUP.

HELD is the number of messages that are pulled and not yet acknowledged. Rates are those of the last
minute.

\b
Examples:
  kourou group running-info billing
  kourou group running-info billing 10.0.0.5@4711 --settings
  kourou group running-info billing 10.0.0.5@4711 --stack     with the stacks of its threads

Exit codes: 1 also if a member did not answer; the other members are shown.
"""


def connections(
    group: GroupName,
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the connected members."""
    check_group(group)
    found = AdminSession(namesrv, timeout).run(lambda admin: admin.consumer_connection(group))
    if as_json:
        output.print_json(_connection_json(group, found))
        return
    output.print_table(
        ("MEMBER", "ADDRESS", "LANGUAGE", "VERSION"),
        [
            (one.client_id, one.client_addr, one.language.name, version_name(one.version))
            for one in found.connections
        ],
    )
    print_differences(found.differences)
    output.print_line("")
    output.print_table(
        ("TOPIC", "EXPRESSION"),
        [(topic, wanted.sub_string) for topic, wanted in sorted(found.subscriptions.items())],
    )
    output.print_line("")
    output.print_line(
        f"{found.consume_type.value}, {found.message_model.value}, {found.consume_from_where.value}"
    )


def print_differences(differences: Sequence[str]) -> None:
    """Print the differences between the subscriptions of a group's members, if there are any."""
    if not differences:
        return
    output.print_line("")
    output.print_line(
        "SUBSCRIPTIONS DIFFER: unequal subscriptions of a group's members lose messages"
    )
    for text in differences:
        output.print_line(f"  {text}")


def running_info(
    group: GroupName,
    member: Annotated[
        str | None, typer.Argument(metavar="[MEMBER]", help="Only this member.", show_default=False)
    ] = None,
    *,
    settings: Annotated[bool, typer.Option("--settings", help="Include the settings.")] = False,
    stack: Annotated[bool, typer.Option("--stack", help="Include the stacks of threads.")] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = RUNNING_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print the running information of the members."""
    check_group(group)
    results = AdminSession(namesrv, timeout).run(
        lambda admin: _ask_members(admin, group, member, stack=stack)
    )
    infos = {name: info for name, info in results.items() if isinstance(info, ConsumerRunningInfo)}
    failed = {name: error for name, error in results.items() if isinstance(error, KourouError)}
    if as_json:
        output.print_json({name: _running_json(info) for name, info in infos.items()})
    else:
        for name, info in infos.items():
            _print_running(name, info, settings=settings)
    for name, error in failed.items():
        print_stderr(f"{name}: {one_line(str(error))}")
    if failed:
        raise typer.Exit(FAILED)


async def _ask_members(
    admin: AdminClient, group: str, member: str | None, *, stack: bool
) -> dict[str, ConsumerRunningInfo | KourouError]:
    """Return the running information of each member, or the error of the request."""
    if member is not None:
        return {member: await admin.running_info(group, member, stack=stack)}
    connected = await admin.consumer_connection(group)
    slots = asyncio.Semaphore(MEMBERS_AT_A_TIME)

    async def ask(client_id: str) -> ConsumerRunningInfo | KourouError:
        async with slots:
            try:
                return await admin.running_info(group, client_id, stack=stack)
            except KourouError as error:
                return error

    names = [one.client_id for one in connected.connections]
    return dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))


def _print_running(name: str, info: ConsumerRunningInfo, *, settings: bool) -> None:
    output.print_line(name)
    output.print_line("")
    output.print_table(
        ("TOPIC", "BROKER", "QUEUE", "COMMITTED", "HELD", "LOCKED", "LAST PULL", "LAST CONSUMED"),
        [
            (
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                state.commit_offset,
                state.cached_msg_count,
                "yes" if state.locked else "",
                output.time_text(state.last_pull_timestamp),
                output.time_text(state.last_consume_timestamp),
            )
            for queue, state in sorted(info.queues.items())
        ],
    )
    output.print_line("")
    output.print_table(
        ("TOPIC", "PULL MS", "PULLED/S", "CONSUME MS", "CONSUMED/S", "FAILED/S", "FAILED"),
        [
            (
                topic,
                f"{rates.pull_rt:.1f}",
                f"{rates.pull_tps:.1f}",
                f"{rates.consume_rt:.1f}",
                f"{rates.consume_ok_tps:.1f}",
                f"{rates.consume_failed_tps:.1f}",
                rates.consume_failed_msgs,
            )
            for topic, rates in sorted(info.statuses.items())
        ],
    )
    output.print_line("")
    if settings:
        output.print_table(("SETTING", "VALUE"), sorted(info.properties.items()))
        output.print_line("")
    if info.jstack:
        for line in info.jstack.splitlines():
            output.print_line(one_line(line))
        output.print_line("")


def _connection_json(group: str, found: ConsumerConnection) -> dict[str, object]:
    return {
        "group": group,
        "members": [
            {
                "client_id": one.client_id,
                "address": one.client_addr,
                "language": one.language.name,
                "version": version_name(one.version),
            }
            for one in found.connections
        ],
        "subscriptions": {
            topic: wanted.sub_string for topic, wanted in sorted(found.subscriptions.items())
        },
        "subscriptions_differ": list(found.differences),
        "consume_type": found.consume_type.value,
        "message_model": found.message_model.value,
        "consume_from_where": found.consume_from_where.value,
    }


def _running_json(info: ConsumerRunningInfo) -> dict[str, object]:
    return {
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "committed_offset": state.commit_offset,
                "held": state.cached_msg_count,
                "held_mib": state.cached_msg_size_in_mib,
                "last_pull_at_ms": state.last_pull_timestamp or None,
                "last_consumed_at_ms": state.last_consume_timestamp or None,
                "locked": state.locked,
                "locked_at_ms": state.last_lock_timestamp or None,
                "dropped": state.dropped,
            }
            for queue, state in sorted(info.queues.items())
        ],
        "topics": [
            {
                "topic": topic,
                "pull_ms": rates.pull_rt,
                "pull_tps": rates.pull_tps,
                "consume_ms": rates.consume_rt,
                "consume_ok_tps": rates.consume_ok_tps,
                "consume_failed_tps": rates.consume_failed_tps,
                "failed_messages": rates.consume_failed_msgs,
            }
            for topic, rates in sorted(info.statuses.items())
        ],
        "settings": dict(sorted(info.properties.items())),
        "stack": info.jstack or None,
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
    help=CONNECTIONS_HELP,
    short_help="List members and subscriptions of a group.",
)(connections)
app.command(
    "running-info",
    help=RUNNING_INFO_HELP,
    short_help="Show queues and rates of members.",
)(running_info)
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
