"""Queries of the store: offsets of a queue, and a message by its id.

    29  SEARCH_OFFSET_BY_TIMESTAMP   first queue offset stored at or after a time
    30  GET_MAX_OFFSET               offset after the last visible message
    31  GET_MIN_OFFSET               offset of the oldest stored message
    32  GET_EARLIEST_MSG_STORETIME   store time of that message; -1 for an empty queue
    33  VIEW_MESSAGE_BY_ID           record at a physical offset

As in Java, a topic or queue that does not exist is treated as empty.

Source: AdminBrokerProcessor.java, QueryMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.reserved import check_delivered, topic_of
from kourou.errors import RemoteSystemError
from kourou.model.topic import ROCKSDB_TRANS_HALF_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.offsets import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from kourou.protocol.pulling import ViewMessageRequestHeader
from kourou.remoting.connection import Request

_UPPER: Final = "UPPER"
_HALF_TOPICS: Final = (TRANS_HALF_TOPIC, ROCKSDB_TRANS_HALF_TOPIC)


class QueryHandlers:
    """Serves queries of consumers and administrators."""

    def __init__(self, context: BrokerContext) -> None:
        self._reader = context.store.reader
        self._offload = context.offload
        self._later = context.later

    def on_search_offset_by_timestamp(self, request: Request) -> None:
        """Serve 29; takes about twenty small reads of the queue and the log."""
        header = request.command.header(SearchOffsetRequestHeader)

        async def serve() -> RemotingCommand:
            offset = await self._offload(
                self._reader.offset_by_time,
                header.topic,
                header.queue_id,
                header.timestamp,
                upper=(header.boundary_type or "").upper() == _UPPER,
            )
            return response(request.command, header=SearchOffsetResponseHeader(offset))

        self._later.answer(request, serve)

    def on_get_max_offset(self, request: Request) -> RemotingCommand:
        """Serve 30."""
        header = request.command.header(GetMaxOffsetRequestHeader)
        offset = self._reader.max_offset(header.topic, header.queue_id)
        return response(request.command, header=GetMaxOffsetResponseHeader(offset))

    def on_get_min_offset(self, request: Request) -> RemotingCommand:
        """Serve 31."""
        header = request.command.header(GetMinOffsetRequestHeader)
        offset = self._reader.min_offset(header.topic, header.queue_id)
        return response(request.command, header=GetMinOffsetResponseHeader(offset))

    def on_get_earliest_msg_storetime(self, request: Request) -> None:
        """Serve 32."""
        header = request.command.header(GetEarliestMsgStoretimeRequestHeader)
        topic, queue_id = header.topic, header.queue_id

        async def serve() -> RemotingCommand:
            oldest = self._reader.min_offset(topic, queue_id)
            at_ms = await self._offload(self._reader.store_time, topic, queue_id, oldest)
            return response(request.command, header=GetEarliestMsgStoretimeResponseHeader(at_ms))

        self._later.answer(request, serve)

    def on_view_message_by_id(self, request: Request) -> None:
        """Serve 33: answer the stored record once it is visible to consumers.

        A half message may never be committed. So it is returned only to a client that names its
        topic, as tools do.
        """
        header = request.command.header(ViewMessageRequestHeader)
        offset = header.offset

        async def serve() -> RemotingCommand:
            record = await self._offload(self._reader.read_record, offset)
            if record is None:
                raise RemoteSystemError(
                    ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
                )
            topic = topic_of(record)
            if topic in _HALF_TOPICS and header.topic != topic:
                check_delivered(topic, offset)
            return response(request.command, body=record)

        self._later.answer(request, serve)
