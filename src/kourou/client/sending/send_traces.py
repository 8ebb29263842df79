"""Traces of what a producer sends.

Source: SendMessageTraceHookImpl.java, apache/rocketmq 5.5.0. One difference: each message of a
batch has a trace of its own, so that it is found by its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kourou.client.instance import ClientInstance
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.send_hooks import SendAttempt, SendHook, SendOutcome
from kourou.client.trace_messages import Traced
from kourou.client.trace_writer import TraceWriter
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.protocol.trace_text import SentTrace, TracedKind

_DELAYS: Final = (
    names.DELAY,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    "__STARTDELIVERTIME",
)


def send_traces(instance: ClientInstance, group: str) -> list[SendHook]:
    """Return the hook that traces a producer's sends; nothing if its config does not ask for it."""
    if not instance.config.enable_trace:
        return []
    writer = TraceWriter(instance, group, "PRODUCE")
    instance.companions.add(writer)
    return [SendTraces(writer)]


class SendTraces:
    """Traces each try that a broker answered; not those that failed, as in Java."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer

    def before_send(self, attempt: SendAttempt) -> None:
        """Nothing is known yet."""

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Trace what was stored."""
        if outcome.region is None or attempt.queue.topic.startswith(self._writer.topic):
            return
        self._writer.put(self._traced(attempt, outcome))

    def _traced(self, attempt: SendAttempt, outcome: SendOutcome) -> Iterator[Traced]:
        cost_ms = round(outcome.elapsed_ms)
        at_ms = self._writer.now_ms() - cost_ms
        kind = _kind(attempt.properties)
        is_batch = len(attempt.messages) > 1
        for message, receipt in zip(attempt.messages, outcome.receipts, strict=True):
            record = SentTrace(
                at_ms=at_ms,
                region=outcome.region,
                group=attempt.group,
                topic=message.topic,
                msg_id=receipt.msg_id,
                tags=message.tags,
                keys=" ".join(message.keys) or None,
                store_host=attempt.broker_address,
                body_bytes=len(message.body) if is_batch else attempt.body_bytes,
                cost_ms=cost_ms,
                kind=kind,
                offset_msg_id=receipt.offset_msg_id,
                is_success=receipt.status is SendStatus.SEND_OK,
            )
            yield Traced(message.topic, record, (receipt.msg_id, *message.keys))


def _kind(text: str) -> TracedKind:
    properties = decode_properties(text.encode(errors="replace"))
    if any(name in properties for name in _DELAYS):
        return TracedKind.DELAY
    if properties.get(names.TRAN_MSG, "").lower() == "true":
        return TracedKind.HALF
    return TracedKind.NORMAL
