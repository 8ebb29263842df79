"""Queries of the store: offsets of a queue, a message by its id, and messages by a key.

    12  QUERY_MESSAGE                newest messages with a key, a unique id or a tag
    29  SEARCH_OFFSET_BY_TIMESTAMP   first queue offset stored at or after a time
    30  GET_MAX_OFFSET               offset after the last visible message
    31  GET_MIN_OFFSET               offset of the oldest stored message
    32  GET_EARLIEST_MSG_STORETIME   store time of that message; -1 for an empty queue
    33  VIEW_MESSAGE_BY_ID           record at a physical offset

As in Java, a topic or queue that does not exist is treated as empty. For 12, Java returns
all messages with the key's hash, and leaves the comparison to its client. Here only messages with
exactly that key, and a store time in the requested span, are returned.

Source: AdminBrokerProcessor.java, QueryMessageProcessor.java, DefaultMessageStore.queryMessage,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.reserved import check_delivered, topic_of
from kourou.errors import RemoteSystemError, SystemBusyError
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
from kourou.protocol.pulling import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from kourou.remoting.connection import Request
from kourou.store.index.index_keys import KeyKind
from kourou.store.index.key_index import SEARCHED_BYTES_MAX, KeyQuery

SEARCHES_MAX: Final = 4
"""Limit on concurrent searches; more are refused, so that they cannot use up the read threads."""
MESSAGES_MAX: Final = 64
"""Limit on messages of one answer (Java's maxMsgsNumBatch)."""
UNIQUE_MESSAGES_MAX: Final = 32
"""Limit on messages with one unique id (Java's defaultQueryMaxNum); a send that is retried may be
stored more than once."""

_NO_INDEX: Final = QueryMessageResponseHeader(0, 0)
_KINDS: Final = {kind.value: kind for kind in KeyKind}


class MessageQueryHandler:
    """Serves QUERY_MESSAGE."""

    def __init__(self, context: BrokerContext) -> None:
        self._topics = context.topics
        self._store = context.store
        self._offload = context.offload
        self._later = context.later
        self._searches = 0

    def on_query_message(self, request: Request) -> RemotingCommand | None:
        """Answer with the records of the messages, oldest first; with 22 if there are none."""
        command = request.command
        header = command.header(QueryMessageRequestHeader)
        if self._store.index is None:
            return _none(command, "this broker has no key index: messageIndexEnable is false")
        if self._topics.get(header.topic) is None:
            return _none(command, f"topic {header.topic} does not exist")
        query = _query(header)
        self._later.answer(request, lambda: self._search(command, query))
        return None

    async def _search(self, command: RemotingCommand, query: KeyQuery) -> RemotingCommand:
        if self._searches >= SEARCHES_MAX:
            raise SystemBusyError(
                ResponseCode.SYSTEM_BUSY, f"{SEARCHES_MAX} searches are in progress; try again"
            )
        self._searches += 1
        try:
            found = await self._offload(self._store.find_messages, query)
        finally:
            self._searches -= 1
        if not found.records:
            text = "can not find message, maybe time range not correct"
            lag_bytes = self._store.index_lag_bytes
            if lag_bytes > SEARCHED_BYTES_MAX:
                text += f"; the key index is being made, {lag_bytes} bytes of the log are left"
            return _none(command, text)
        header = QueryMessageResponseHeader(found.index_at_ms, found.index_offset)
        return response(command, header=header, body=b"".join(found.records))


def _query(header: QueryMessageRequestHeader) -> KeyQuery:
    """Return the query; as in Java, an unknown index type is a key."""
    kind = _KINDS.get(header.index_type or "", KeyKind.KEY)
    messages_max = min(header.max_num, MESSAGES_MAX)
    if header.is_unique_key:
        kind, messages_max = KeyKind.UNIQUE_ID, UNIQUE_MESSAGES_MAX
    return KeyQuery(
        header.topic, header.key, kind, messages_max, header.begin_timestamp, header.end_timestamp
    )


def _none(command: RemotingCommand, text: str) -> RemotingCommand:
    """Return the answer for no messages, with the header that clients read nevertheless."""
    return response(command, ResponseCode.QUERY_NOT_FOUND, text, _NO_INDEX)


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
