"""`kourou group set-mode`, and what `kourou group describe` shows of pops."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    GroupName,
    Namesrv,
    OnBroker,
    Timeout,
    TopicName,
)
from kourou.client.administration.admin import GroupDescription, GroupPops, ReviveLag, TopicMode
from kourou.model.group import ConsumeType, MessageModel
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_group, is_retry_topic, retry_topic

SET_MODE_HELP: Final = """\
Choose whether the members of GROUP pull or pop TOPIC, if brokers assign the queues.

The mode applies to members whose queues are assigned by brokers (client_rebalance=False, in Java
clientRebalance), while they run. Others go on as they are: ordered and broadcasting members pull,
and members with mode="pop" pop. `kourou group describe` shows the mode.

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
    broker: OnBroker = None,
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


def print_pops(found: GroupDescription, pops: GroupPops) -> None:
    """Print the modes of a group's topics, and the state of its pops if it pops anything."""
    if pops.modes:
        output.print_line("")
        output.print_table(
            ("TOPIC", "BROKER", "MODE"),
            [(one.topic, one.broker_name, _mode_text(one)) for one in pops.modes],
        )
    if not _is_popping(found, pops):
        return
    output.print_line("")
    for text in _notes(found, pops):
        output.print_line(text)


def pops_json(pops: GroupPops) -> dict[str, object]:
    """Return the same as JSON members."""
    return {
        "consume_type": None if pops.consume_type is None else pops.consume_type.value,
        "message_model": None if pops.message_model is None else pops.message_model.value,
        "modes": [
            {
                "topic": one.topic,
                "broker": one.broker_name,
                "mode": one.mode.value.lower(),
                "share": one.share_queues,
                "is_set": one.is_set,
            }
            for one in pops.modes
        ],
        "revive_lag": [
            {"broker": name, "messages": lag.messages, "ms": lag.behind_ms}
            for name, lag in pops.revive_lags.items()
        ],
    }


def _is_popping(found: GroupDescription, pops: GroupPops) -> bool:
    own_retry = retry_topic(found.group)
    return (
        pops.has_pop_mode
        or pops.consume_type is ConsumeType.POP
        or any(at.in_flight for at in found.offsets.values())
        or any(is_retry_topic(one.topic) and one.topic != own_retry for one in found.offsets)
    )


def _notes(found: GroupDescription, pops: GroupPops) -> list[str]:
    """Return the lines on pops: what is in flight, blocked, or late, and which members pull."""
    count = sum(at.in_flight or 0 for at in found.offsets.values())
    lines = [f"{output.counted(count, 'message')} in flight"]
    lines += [
        f"{queue.topic} {queue.broker_name}/{queue.queue_id} is blocked: {at.block_reason}"
        for queue, at in found.offsets.items()
        if at.block_reason is not None
    ]
    lines += [f"revival on {name}: {_lag_text(lag)}" for name, lag in pops.revive_lags.items()]
    if pops.consume_type is ConsumeType.POP:
        lines.append("the live members pop in any mode (CONSUME_POP)")
    if not pops.has_pop_mode:
        return lines
    holders = sorted({at.lock_holder for at in found.offsets.values() if at.lock_holder})
    if pops.message_model is MessageModel.BROADCASTING:
        lines.append("the live members broadcast: they pull in any mode")
    elif holders:
        lines.append(f"consuming in order, by pulls in any mode: {', '.join(holders)}")
    else:
        lines.append("members that broadcast, or lock queues to consume in order, pull in any mode")
    return lines


def _mode_text(mode: TopicMode) -> str:
    text = mode.mode.value.lower()
    if mode.share_queues:
        text += f", {output.counted(mode.share_queues, 'other member')} at a queue"
    return text if mode.is_set else f"{text} (default)"


def _lag_text(lag: ReviveLag) -> str:
    if not lag.messages:
        return "nothing is late"
    time = "" if lag.behind_ms is None else f", the first one by {lag.behind_ms / 1000:.1f} s"
    return f"{output.counted(lag.messages, 'record')} behind{time}"
