"""What traces say of a message: who sent it, and who consumed it when.

Source: QueryMsgTraceByIdSubCommand.java, TraceView.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.client.administration.admin_messages import MESSAGES_DEFAULT, MessageAdmin, lacks_index
from kourou.errors import QueryNotFoundError
from kourou.model.topic import TRACE_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.protocol.trace_text import ConsumedTrace, ConsumingTrace, TraceRecord, decode_traces


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step on a message's way.

    Attributes:
        at_ms: when it was, by the client's clock, in epoch ms.
        record: what the client wrote of it.
        ended: of a `ConsumingTrace`, how the listener's call ended; None if nothing tells.
        client_host: the address that the client wrote from.
    """

    at_ms: int
    record: TraceRecord
    ended: ConsumedTrace | None
    client_host: str


class TraceAdmin(MessageAdmin):
    """A part of `AdminClient`."""

    async def message_trace(
        self,
        msg_id: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        begin_ms: int = 0,
        end_ms: int | None = None,
        max_messages: int = MESSAGES_DEFAULT,
    ) -> list[TraceStep]:
        """Return what clients have written of a message, at least one step, by time.

        Only clients that are asked to write traces (`enable_trace`) do so, some seconds later.

        Args:
            msg_id: its unique id, as producers and consumers print it.
            trace_topic: where traces are.
            begin_ms: written at this time or later, in epoch ms.
            end_ms: written at this time or before; None: until now.
            max_messages: at most so many trace messages from each broker, the latest.

        Raises:
            TopicNotFoundError: no name server knows the trace topic.
            QueryNotFoundError: nothing tells of the message.
            MalformedBodyError: a trace message does not parse.
        """
        unknown = QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND,
            f"no trace in {trace_topic} tells of {msg_id}: clients write traces if enable_trace is "
            "on, some seconds later",
        )
        try:
            found = await self.messages_by_key(
                trace_topic, msg_id, begin_ms=begin_ms, end_ms=end_ms, max_messages=max_messages
            )
        except QueryNotFoundError as error:
            if lacks_index(error):
                raise
            raise unknown from error
        told = [
            (record, message.born_host[0])
            for message in found
            for record in decode_traces(message.body)
            if record.msg_id == msg_id
        ]
        if not told:
            raise unknown
        return _steps(told)


def _steps(told: list[tuple[TraceRecord, str]]) -> list[TraceStep]:
    """Return the steps, the two sides of a listener's call as one."""
    ends = {one.request_id: one for one, _ in told if isinstance(one, ConsumedTrace)}
    steps = []
    for record, host in told:
        if isinstance(record, ConsumedTrace):
            continue
        ended = ends.pop(record.request_id, None) if isinstance(record, ConsumingTrace) else None
        steps.append(TraceStep(record.at_ms, record, ended, host))
    for record, host in told:  # of which the other side is missing
        if isinstance(record, ConsumedTrace) and record.request_id in ends:
            begun = ConsumingTrace(
                at_ms=(record.at_ms or 0) - record.cost_ms,
                region=None,
                group=record.group,
                request_id=record.request_id,
                msg_id=record.msg_id,
                keys=record.keys,
            )
            steps.append(TraceStep(begun.at_ms, begun, ends.pop(record.request_id), host))
    return sorted(steps, key=lambda step: step.at_ms)
