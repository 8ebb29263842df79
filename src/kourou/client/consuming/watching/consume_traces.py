"""Message traces of a consumer's deliveries.

Source: ConsumeMessageTraceHookImpl.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kourou.client.consuming.watching.consume_hooks import (
    ConsumeContext,
    ConsumeHook,
    ConsumeOutcome,
)
from kourou.client.instance import ClientInstance
from kourou.client.trace_writer import TraceEntry, TraceWriter
from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.protocol.trace_text import ConsumedTrace, ConsumingTrace, TracedOutcome

_CALL: Final = "kourou.trace"
_OUTCOMES: Final = {
    "SUCCESS": TracedOutcome.SUCCESS,
    "TIME_OUT": TracedOutcome.TIME_OUT,
    "EXCEPTION": TracedOutcome.EXCEPTION,
    "RETURNNULL": TracedOutcome.RETURNED_NOTHING,
    "FAILED": TracedOutcome.FAILED,
}
_OK: Final = (ConsumeOutcome.SUCCESS, ConsumeOutcome.TIME_OUT)


def consume_traces(instance: ClientInstance, group: str) -> list[ConsumeHook]:
    """Return the hook that traces consumption, or none if `enable_trace` is False."""
    if not instance.config.enable_trace:
        return []
    writer = TraceWriter(instance, group, "CONSUME")
    instance.companions.add(writer)
    return [ConsumeTraces(writer)]


class ConsumeTraces:
    """Traces each message before and after its listener call."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer

    def before(self, context: ConsumeContext) -> None:
        """Write a trace of the start for each message."""
        messages = [message for message in context.messages if self._is_traced(message)]
        request_id, now_ms = self._writer.next_id(), self._writer.now_ms()
        context.values[_CALL] = (request_id, messages)
        self._writer.put(
            TraceEntry(
                message.topic,
                ConsumingTrace(
                    at_ms=now_ms,
                    region=message.properties[names.MSG_REGION],
                    group=context.group,
                    request_id=request_id,
                    msg_id=message.msg_id,
                    retries=message.reconsume_times,
                    keys=" ".join(message.keys) or None,
                ),
                (message.msg_id, *message.keys),
            )
            for message in messages
        )

    def after(self, context: ConsumeContext) -> None:
        """Write a trace of the outcome for each message."""
        call = context.values.get(_CALL)
        if not isinstance(call, tuple) or context.outcome is None:
            return
        request_id: str = call[0]
        messages: Sequence[MessageExt] = call[1]
        cost_ms = int(context.elapsed_ms / len(context.messages))
        now_ms = self._writer.now_ms()
        is_success = context.outcome in _OK
        outcome = _OUTCOMES[context.outcome.value]
        self._writer.put(
            TraceEntry(
                message.topic,
                ConsumedTrace(
                    request_id=request_id,
                    msg_id=message.msg_id,
                    cost_ms=cost_ms,
                    is_success=is_success,
                    keys=" ".join(message.keys) or None,
                    outcome=outcome,
                    at_ms=now_ms,
                    group=context.group,
                ),
                (message.msg_id, *message.keys),
            )
            for message in messages
        )

    def _is_traced(self, message: MessageExt) -> bool:
        properties = message.properties
        return (
            names.MSG_REGION in properties
            and properties.get(names.TRACE_ON) != "false"
            and not message.topic.startswith(self._writer.topic)
        )
