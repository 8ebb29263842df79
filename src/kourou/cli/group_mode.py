"""`kourou group set-mode`: whether a group pulls or pops a topic."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import TIMEOUT_DEFAULT_S, AsJson, GroupName, Namesrv, Timeout, TopicName
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_group

SET_MODE_HELP: Final = """\
Have the members of GROUP pull TOPIC, or pop it, where brokers share their queues out.

It concerns members that ask brokers for their queues (client_rebalance=False, clientRebalance in
Java). Kourou's brokers do not serve pop yet and refuse it; its members leave a topic that a Java
broker wants them to pop, and say so.

\b
Examples:
  kourou group set-mode billing OrderPlaced pull
  kourou group set-mode billing OrderPlaced pop --share 2     each queue is popped by three members
"""


class Mode(StrEnum):
    """How members read."""

    PULL = "pull"
    POP = "pop"


def set_mode(
    group: GroupName,
    topic: TopicName,
    mode: Annotated[Mode, typer.Argument(metavar="pull|pop", show_default=False)],
    *,
    share: Annotated[
        int,
        typer.Option("--share", metavar="N", help="With pop: others that read a member's queues."),
    ] = 0,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="NAME", help="Only on this broker.")
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Set the mode on all brokers of the topic."""
    check_group(group)
    names = AdminSession(namesrv, timeout).ask(
        lambda admin: admin.set_request_mode(
            topic, group, is_pop=mode is Mode.POP, share_queues=share, broker_name=broker
        )
    )
    if as_json:
        told = {"group": group, "topic": topic, "mode": mode.value, "share": share}
        output.print_json(told | {"brokers": names})
        return
    verb = "pops" if mode is Mode.POP else "pulls"
    output.print_line(f"{group} {verb} {topic} on {', '.join(names)}")
