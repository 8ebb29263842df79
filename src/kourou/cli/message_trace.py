"""`kourou message trace`: the traces that clients have written for a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import TIMEOUT_DEFAULT_S, AsJson, MessageId, Namesrv, Timeout
from kourou.client.administration.admin import AdminClient
from kourou.client.administration.admin_messages import MESSAGES_DEFAULT
from kourou.client.administration.admin_traces import TraceStep
from kourou.errors import TopicNotFoundError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import TRACE_TOPIC, check_topic
from kourou.protocol.trace_text import (
    ConsumingTrace,
    RecallTrace,
    SentTrace,
    TransactionEndTrace,
)

TRACE_HELP: Final = """\
Show which clients sent and consumed a message, and when.

MESSAGE is its unique id, as `kourou send` and consumers print it. Clients write traces only with
enable_trace (in Java enableTrace), a few seconds after each step.

\b
Examples:
  kourou message trace 7F0000010001F00D6B2E0A1B2C3D0000
  kourou message trace 7F0000010001F00D6B2E0A1B2C3D0000 --topic OurTraces --json
"""

_COLUMNS: Final = ("STEP", "GROUP", "CLIENT", "AT", "MS", "STATUS")


def trace(
    message: MessageId,
    *,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The trace topic.")] = TRACE_TOPIC,
    count: Annotated[
        int, typer.Option(metavar="N", min=1, help="At most N trace messages from each broker.")
    ] = MESSAGES_DEFAULT,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the steps."""
    check_topic(topic)

    async def act(admin: AdminClient) -> list[TraceStep]:
        try:
            return await admin.message_trace(message.strip(), trace_topic=topic, max_messages=count)
        except TopicNotFoundError as error:
            raise TopicNotFoundError(
                error.code,
                f"there is no trace topic {topic}: no client has written a trace yet; clients with "
                "enable_trace do",
            ) from error

    steps = [_step_json(step) for step in AdminSession(namesrv, timeout).run(act)]
    if as_json:
        output.print_json(steps)
        return
    rows = [
        (
            step["step"],
            step["group"] or "",
            step["client"],
            output.time_text(int(str(step["at_ms"]))) or "",
            "" if step["cost_ms"] is None else step["cost_ms"],
            step["status"],
        )
        for step in steps
    ]
    output.print_table(_COLUMNS, rows)


def _step_json(step: TraceStep) -> Mapping[str, object]:
    """Return a step as a JSON object."""
    record, ended = step.record, step.ended
    cost_ms: int | None = None
    if isinstance(record, SentTrace):
        kind, cost_ms = "sent", record.cost_ms
        status = "success" if record.is_success else "failed"
    elif isinstance(record, ConsumingTrace):
        kind, status = "consumed", "not ended"
        if ended is not None:
            cost_ms, status = ended.cost_ms, "success" if ended.is_success else "failed"
            if ended.outcome is not None and not ended.is_success:
                status = f"failed: {ended.outcome.name.lower()}"
    elif isinstance(record, TransactionEndTrace):
        kind, status = "transaction", (record.state or "unknown").removesuffix("_MESSAGE").lower()
    else:
        assert isinstance(record, RecallTrace), "the end of a call is not a step"
        kind, status = "recalled", "success" if record.is_success else "failed"
    return {
        "step": kind,
        "group": record.group,
        "client": step.client_host,
        "at_ms": step.at_ms,
        "cost_ms": cost_ms,
        "status": status,
    }
