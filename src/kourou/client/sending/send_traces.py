"""Traces of a producer: sends, ends of transactions and recalls.

Source: SendMessageTraceHookImpl.java, EndTransactionTraceHookImpl.java and
DefaultMQProducerImpl.recallMessage, apache/rocketmq 5.5.0. One difference: each message of a
batch has its own trace, so that it can be found by its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kourou.client.calls_send import traced_region
from kourou.client.instance import ClientInstance
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.send_hooks import SendAttempt, SendOutcome
from kourou.client.sending.transaction import TransactionEnd, TransactionState
from kourou.client.trace_writer import TraceEntry, TraceWriter
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.trace_text import RecallTrace, SentTrace, TracedKind, TransactionEndTrace

_DELAYS: Final = (
    names.DELAY,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    "__STARTDELIVERTIME",
)

_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
"""The names of Java's LocalTransactionState."""


def send_traces(instance: ClientInstance, group: str) -> list[SendTraces]:
    """Return the hook that traces a producer's sends; an empty list without `enable_trace`."""
    if not instance.config.enable_trace:
        return []
    writer = TraceWriter(instance, group, "PRODUCE")
    instance.companions.add(writer)
    return [SendTraces(writer)]


class SendTraces:
    """Hook that traces successful tries of sends, ends of transactions, and answered recalls.

    Failed tries are not traced, as in Java.
    """

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._region: str | None = None  # from the last answer with receipts

    def before_send(self, attempt: SendAttempt) -> None:
        """Do nothing."""

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Trace a successful try, unless it was of a trace message itself."""
        if not outcome.receipts:
            return  # failed; a broker names its region in refusals, too
        self._region = outcome.region
        if outcome.region is None or attempt.queue.topic.startswith(self._writer.topic):
            return
        self._writer.put(self._traced(attempt, outcome))

    def end_transaction(self, end: TransactionEnd) -> None:
        """Trace the end of a transaction, before the request is sent."""
        if self._region is None:
            return
        message = end.message
        record = TransactionEndTrace(
            at_ms=self._writer.now_ms(),
            region=self._region,
            group=end.group,
            topic=end.topic,
            msg_id=end.msg_id,
            tags=message.tags,
            keys=" ".join(message.keys) or None,
            store_host=end.broker_address,
            transaction_id=end.msg_id,
            state=_STATES[end.state],
            is_from_check=end.is_checked,
        )
        self._writer.put([TraceEntry(end.topic, record, (end.msg_id, *message.keys))])

    def recalled(self, group: str, topic: str, msg_id: str, answer: RemotingCommand) -> None:
        """Trace the answer to a recall."""
        region = traced_region(answer)
        if region is None:
            return
        record = RecallTrace(
            at_ms=self._writer.now_ms(),
            region=region,
            group=group,
            topic=topic,
            msg_id=msg_id,
            is_success=answer.code == ResponseCode.SUCCESS,
        )
        self._writer.put([TraceEntry(topic, record, (msg_id,))])

    def _traced(self, attempt: SendAttempt, outcome: SendOutcome) -> Iterator[TraceEntry]:
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
            yield TraceEntry(message.topic, record, (receipt.msg_id, *message.keys))


def _kind(text: str) -> TracedKind:
    properties = decode_properties(text.encode(errors="replace"))
    if any(name in properties for name in _DELAYS):
        return TracedKind.DELAY
    if properties.get(names.TRAN_MSG, "").lower() == "true":
        return TracedKind.HALF
    return TracedKind.NORMAL
