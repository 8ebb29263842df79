"""`kourou group set-mode`: choice of pull or pop for a group and a topic."""

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
Choose whether the members of GROUP pull or pop TOPIC, if brokers assign the queues.

The mode applies to members whose queues are assigned by brokers (client_rebalance=False, in Java
clientRebalance). Kourou's brokers do not support pop and refuse it. Kourou's consumers do not
consume a topic that a Java broker assigns for pop, and log that.

\b
Examples:
  kourou group set-mode billing OrderPlaced pull
  kourou group set-mode billing OrderPlaced pop --share 2     three members pop each queue
"""


class Mode(StrEnum):
    """The consume mode of members."""

    PULL = "pull"
    POP = "pop"


def set_mode(
    group: GroupName,
    topic: TopicName,
    mode: Annotated[Mode, typer.Argument(metavar="pull|pop", show_default=False)],
    *,
    share: Annotated[
        int,
        typer.Option("--share", metavar="N", help="With pop: other members that share a queue."),
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
    names = AdminSession(namesrv, timeout).run(
        lambda admin: admin.set_request_mode(
            topic, group, is_pop=mode is Mode.POP, share_queues=share, broker_name=broker
        )
    )
    if as_json:
        result = {"group": group, "topic": topic, "mode": mode.value, "share": share}
        output.print_json(result | {"brokers": names})
        return
    verb = "pops" if mode is Mode.POP else "pulls"
    output.print_line(f"{group} {verb} {topic} on {', '.join(names)}")
