"""QUERY_MESSAGE (12): the newest messages with a key, a unique id or a tag.

Java returns all messages with the key's hash, and leaves the comparison to its client. Here only
messages with exactly that key, and a store time in the requested span, are returned.

Source: QueryMessageProcessor.java, DefaultMessageStore.queryMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.context import BrokerContext
from kourou.errors import SystemBusyError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.pulling import QueryMessageRequestHeader, QueryMessageResponseHeader
from kourou.remoting.connection import Request
from kourou.store.index.index_keys import KeyKind
from kourou.store.index.index_query import TAIL_BYTES_MAX, KeyQuery

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
            if lag_bytes > TAIL_BYTES_MAX:
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
