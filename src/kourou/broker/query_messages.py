"""QUERY_MESSAGE (12): messages by their unique id.

There is no index of keys and tags yet: these queries are answered 22, as Java answers a key that it
does not find. A unique id is searched for without one, see `unique_id_search.py`.

Source: QueryMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kourou.broker.retry_topics import TopicTable
from kourou.broker.unique_id_search import Span, UniqueIdSearch, spans_of
from kourou.clock import Clock
from kourou.errors import InvalidMessageError, SystemBusyError
from kourou.model.msgid import decode_unique_id
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.headers_consume import QueryMessageRequestHeader, QueryMessageResponseHeader
from kourou.remoting.connection import Request
from kourou.remoting.later import LaterReplies
from kourou.remoting.runtime import Offload
from kourou.store.message_store import MessageStore

SEARCHES_MAX: Final = 2
"""Searches at once; one more is refused, so that they cannot take all threads that read."""

_UNIQUE_ID: Final = "U"
_NO_INDEX: Final = QueryMessageResponseHeader(0, 0)


class MessageQueryHandler:
    """Serves QUERY_MESSAGE."""

    def __init__(
        self,
        topics: TopicTable,
        store: MessageStore,
        clock: Clock,
        offload: Offload,
        later: LaterReplies,
    ) -> None:
        """Search in `store`.

        Args:
            topics: which there are, and their queues.
            store: read only.
            clock: tells the month that an id most likely is of.
            offload: takes the search off the loop.
            later: answers when it is done.
        """
        self._topics = topics
        self._store = store
        self._clock = clock
        self._offload = offload
        self._later = later
        self._searches = 0

    def on_query_message(self, request: Request) -> RemotingCommand | None:
        """Answer the records of the messages with the unique id; 22 if there is none.

        Java's number of messages is not asked for: a unique id has one, or a few of one send that
        was tried again.
        """
        command = request.command
        header = command.header(QueryMessageRequestHeader)
        if not header.is_unique_key and header.index_type != _UNIQUE_ID:
            return _none(
                command, "messages are not found by key or tag: there is no index yet; ask by id"
            )
        try:
            month_ms = decode_unique_id(header.key).month_ms
        except InvalidMessageError as error:
            return _none(command, str(error))
        topic = self._topics.get(header.topic)
        if topic is None:
            return _none(command, f"topic {header.topic} does not exist")
        now_ms = self._clock.now_ms()
        local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().tzinfo or UTC
        asked = Span(header.begin_timestamp, header.end_timestamp)
        spans = spans_of(month_ms, now_ms, asked, local)
        queue_nums = max(topic.read_queue_nums, topic.write_queue_nums)
        search = UniqueIdSearch(self._store, topic.name, queue_nums, header.key)
        self._later.answer(request, lambda: self._search(command, search, spans))
        return None

    async def _search(
        self, command: RemotingCommand, search: UniqueIdSearch, spans: list[Span]
    ) -> RemotingCommand:
        if self._searches >= SEARCHES_MAX:
            raise SystemBusyError(
                ResponseCode.SYSTEM_BUSY, f"{SEARCHES_MAX} searches are under way; try again"
            )
        self._searches += 1
        try:
            records = await self._offload(search.run, spans)
        finally:
            self._searches -= 1
        if not records:
            return _none(command, "can not find message, maybe time range not correct")
        return response(command, header=_NO_INDEX, body=b"".join(records))


def _none(command: RemotingCommand, text: str) -> RemotingCommand:
    """Return the answer that nothing was found, with the header that clients read nevertheless."""
    return response(command, ResponseCode.QUERY_NOT_FOUND, text, _NO_INDEX)
