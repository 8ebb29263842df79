"""`kourou group connections` and `kourou group running-info`: the live members of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.exits import FAILED, one_line, print_stderr
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    GroupName,
    Namesrv,
    Timeout,
)
from kourou.client.administration.admin import AdminClient
from kourou.errors import KourouError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_group
from kourou.protocol.codes import version_name
from kourou.protocol.connections import Connection, ConsumerConnection
from kourou.protocol.running_info import ConsumerRunningInfo

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
    print_connections(found.connections)
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


def print_connections(connections: Sequence[Connection]) -> None:
    """Print clients as a table."""
    output.print_table(
        ("MEMBER", "ADDRESS", "LANGUAGE", "VERSION"),
        [
            (one.client_id, one.client_addr, one.language.name, version_name(one.version))
            for one in connections
        ],
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
        "members": connections_json(found.connections),
        "subscriptions": {
            topic: wanted.sub_string for topic, wanted in sorted(found.subscriptions.items())
        },
        "subscriptions_differ": list(found.differences),
        "consume_type": found.consume_type.value,
        "message_model": found.message_model.value,
        "consume_from_where": found.consume_from_where.value,
    }


def connections_json(connections: Sequence[Connection]) -> list[dict[str, str]]:
    """Return the same as JSON members."""
    return [
        {
            "client_id": one.client_id,
            "address": one.client_addr,
            "language": one.language.name,
            "version": version_name(one.version),
        }
        for one in connections
    ]


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
