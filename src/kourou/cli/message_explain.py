"""`kourou message explain`: why a message was or was not delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.exits import one_line
from kourou.cli.message_search import find_messages
from kourou.cli.message_text import instant_text, position_text
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    MessageId,
    Namesrv,
    Timeout,
    TopicName,
)
from kourou.client.administration.admin import AdminClient, Explanation
from kourou.errors import QueryNotFoundError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.message import MessageExt
from kourou.model.topic import check_group, check_topic

EXPLAIN_HELP: Final = """\
Explain why a message of TOPIC was or was not delivered to its consumer groups.

MESSAGE is an id or a position, as in `kourou message show`. For each group: consumed, in flight
(popped, and invisible until when), filtered (by which expression), waiting (no member, locked or
blocked queue, messages before it), retry n of the maximum, dead letter (with the reason), expired.
A message that is not in its topic may be scheduled, delayed or a half message.

Nothing is consumed. Java brokers do not report which messages are popped, nor who holds the lock of
a queue: what is therefore not known is printed below the table. Retries and dead letters are found
by the message's unique id, in the key index of its broker.

\b
Examples:
  kourou message explain orders 7F0000010001F00D6B2E0A1B2C3D0000
  kourou message explain orders broker-a/3@17 --group billing
  kourou message explain orders broker-a/3@17 --json
"""


class _Explained(NamedTuple):
    """A copy of the message in its topic, None if there is none, and what became of it."""

    message: MessageExt | None
    explanations: Sequence[Explanation]


def explain(
    topic: TopicName,
    message: MessageId,
    *,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only this consumer group.")
    ] = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print what became of the message in each group."""
    check_topic(topic)
    if group is not None:
        check_group(group)
    explained = AdminSession(namesrv, timeout).run(
        lambda admin: _explain(admin, topic, message.strip(), group)
    )
    if as_json:
        output.print_json([_explained_json(message, one) for one in explained])
        return
    for index, one in enumerate(explained):
        if index:
            output.print_line("")
        _print(topic, message, one)


async def _explain(
    admin: AdminClient, topic: str, text: str, group: str | None
) -> list[_Explained]:
    """Return the explanations of each copy of the message in its topic, or of its absence.

    Raises:
        QueryNotFoundError: the message is not found, and nothing is known of it.
    """
    try:
        found = await find_messages(admin, topic, text)
    except QueryNotFoundError:
        missing = await admin.explain_missing(topic, text, time_text=instant_text)
        if missing is None:
            raise
        return [_Explained(None, (missing,))]
    return [
        _Explained(one, await admin.explain_message(one, group, time_text=instant_text))
        for one in found
    ]


def _print(topic: str, text: str, explained: _Explained) -> None:
    message, explanations = explained
    if message is None:
        for one in explanations:
            output.print_line(f"{one_line(text)} is not in {topic}: {one.state.value}")
            output.print_line(f"  {one_line(one.text)}")
        return
    stored = instant_text(message.store_at_ms)
    output.print_line(f"{message.msg_id}  {topic} {position_text(message)}  stored {stored}")
    output.print_line("")
    if not explanations:
        output.print_line("no group has consumed or subscribes to this topic")
        return
    rows = []
    for one in explanations:
        texts = one.reasons or (one.text,)
        if one.reasons and one.text not in one.reasons:
            texts = (one.text, *one.reasons)
        rows.append((one.group or "", one.state.value, one_line(texts[0])))
        rows += [("", "", one_line(line)) for line in texts[1:]]
    output.print_table(("GROUP", "STATE", "EXPLANATION"), rows)
    unknown = [(one.group, line) for one in explanations for line in one.unknown]
    if unknown:
        output.print_line("")
    for name, line in unknown:
        output.print_line(f"not known for {name}: {line}")


def _explained_json(text: str, explained: _Explained) -> dict[str, object]:
    message, explanations = explained
    return {
        "message": None
        if message is None
        else {
            "topic": message.topic,
            "broker": message.broker_name,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "msg_id": message.msg_id,
            "tags": message.tags,
            "store_at_ms": message.store_at_ms,
        },
        "asked": text,
        "explanations": [
            {
                "group": one.group,
                "state": one.state.value,
                "text": one.text,
                "reasons": list(one.reasons),
                "unknown": list(one.unknown),
            }
            for one in explanations
        ],
    }
