"""AdminClient method for traces: the steps of a message, as written by its clients.

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
    """One traced step of a message.

    Attributes:
        at_ms: time of the step by the client's clock, in epoch ms.
        record: the trace written by the client.
        ended: for a `ConsumingTrace`, the trace of the end of the listener call; None if there is
            none.
        client_host: the address of the client.
    """

    at_ms: int
    record: TraceRecord
    ended: ConsumedTrace | None
    client_host: str


class TraceAdmin(MessageAdmin):
    """Finds traces."""

    async def message_trace(
        self,
        msg_id: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        begin_ms: int = 0,
        end_ms: int | None = None,
        max_messages: int = MESSAGES_DEFAULT,
    ) -> list[TraceStep]:
        """Return the traced steps of a message, at least one, sorted by time.

        Only clients with `enable_trace` write traces, with a delay of some seconds.

        Args:
            msg_id: the unique id of the message, set by its producer.
            trace_topic: the topic of the traces.
            begin_ms: only traces written at this time or later, in epoch ms.
            end_ms: only traces written at this time or earlier; None: without limit.
            max_messages: maximum number of trace messages from each broker, the latest ones.

        Raises:
            TopicNotFoundError: the name servers do not have the trace topic.
            QueryNotFoundError: there is no trace of the message.
            MalformedBodyError: a trace message does not parse.
        """
        unknown = QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND,
            f"{trace_topic} has no trace of {msg_id}: clients write traces if enable_trace is on, "
            "with a delay of some seconds",
        )
        try:
            found = await self.messages_by_key(
                trace_topic, msg_id, begin_ms=begin_ms, end_ms=end_ms, max_messages=max_messages
            )
        except QueryNotFoundError as error:
            if lacks_index(error):
                raise
            raise unknown from error
        traces = [
            (record, message.born_host[0])
            for message in found
            for record in decode_traces(message.body)
            if record.msg_id == msg_id
        ]
        if not traces:
            raise unknown
        return _steps(traces)


def _steps(traces: list[tuple[TraceRecord, str]]) -> list[TraceStep]:
    """Return the steps; the traces before and after a listener call become one step."""
    ends = {one.request_id: one for one, _ in traces if isinstance(one, ConsumedTrace)}
    steps = []
    for record, host in traces:
        if isinstance(record, ConsumedTrace):
            continue
        ended = ends.pop(record.request_id, None) if isinstance(record, ConsumingTrace) else None
        steps.append(TraceStep(record.at_ms, record, ended, host))
    for record, host in traces:  # ends of calls whose beginning was not traced
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
