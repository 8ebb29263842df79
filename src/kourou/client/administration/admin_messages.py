"""AdminClient: single messages, by where they are stored, by id and by key.

Nothing here changes where a group stands. What reads a stored message does not need its topic's
permission to be read, but for `message_at`, which pulls.
"""

from __future__ import annotations

from typing import Final

from kourou.client.administration import calls_admin_messages
from kourou.client.administration.admin_calls import AdminCalls
from kourou.client.pull_result import PullStatus
from kourou.errors import QueryNotFoundError, TopicNotFoundError, TransportError, UsageError
from kourou.model.message import MessageExt
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import ResponseCode
from kourou.protocol.headers_consume import QueryMessageRequestHeader
from kourou.remoting.network import format_address

MESSAGES_DEFAULT: Final = 64
"""Messages that a search by key returns, unless told otherwise; mqadmin's."""

_EVER_MS: Final = (1 << 63) - 1
_KINDS: Final = {"U": "id", "K": "key", "T": "tag"}
"""What QUERY_MESSAGE calls what it searches by, and people do."""
_LACKS_INDEX: Final = ("messageIndexEnable is false", "the key index is being made")
"""What the answer has then, beside names that may be any: `broker/pulling/query_messages.py`."""


class MessageAdmin(AdminCalls):
    """Finds messages."""

    async def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """Return the message that an offset message id names, from the broker it names.

        Such an id says where a message is stored; it is what mqadmin calls OffsetID and
        `MessageExt.offset_msg_id`. An id that a producer made needs `message_by_unique_key`.

        Raises:
            InvalidMessageError: it is no such id.
            QueryNotFoundError: the broker has no message there, or no longer.
            ConnectFailedError: there is no broker at the address in the id.
        """
        host, physical_offset = decode_offset_msg_id(offset_msg_id)
        server = self._server(format_address(host))
        message = await calls_admin_messages.message_at_byte(server, physical_offset)
        message.broker_name = await self._broker_name(server.address)
        return message

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at an offset of a queue.

        Raises:
            UsageError: the offset is negative.
            TopicNotFoundError: no name server knows the topic.
            QueryNotFoundError: the queue does not hold that offset; the text says what it holds.
        """
        if offset < 0:
            raise UsageError(f"the queue offset {offset} is negative")
        masters = await self._topic_masters(queue.topic)
        server = masters.get(queue.broker_name)
        if server is None:
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {queue.topic} is not on {queue.broker_name}, "
                f"but on: {', '.join(sorted(masters)) or 'none'}",
            )
        result = await calls_admin_messages.read(server, queue, offset, 1)
        found = result.messages if result.status is PullStatus.FOUND else []
        for message in found:
            if message.queue_offset == offset:
                return message
        if result.min_offset >= result.max_offset:
            held = f"it is empty, and the next message gets {result.max_offset}"
        else:
            held = f"it holds {result.min_offset} to {result.max_offset - 1}"
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND,
            f"{queue.topic} {queue.broker_name}/{queue.queue_id} has no offset {offset}: {held}",
        )

    async def message_by_unique_key(
        self, topic: str, unique_id: str, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> MessageExt:
        """Return the message with a unique id: of several, the one stored first.

        See `messages_by_unique_key`, also for what is raised.
        """
        return (
            await self.messages_by_unique_key(topic, unique_id, begin_ms=begin_ms, end_ms=end_ms)
        )[0]

    async def messages_by_unique_key(
        self, topic: str, unique_id: str, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        """Return the messages with the unique id that their producer gave, at least one.

        There are several if a send was tried again after its first answer was lost, sorted by when
        they were stored.

        Args:
            topic: theirs.
            unique_id: `SendReceipt.msg_id`, as producers and consumers print it.
            begin_ms: stored at this time or later, in epoch ms.
            end_ms: stored at this time or before; None: until now.

        Raises:
            TopicNotFoundError: no name server knows the topic.
            QueryNotFoundError: no broker has it.
        """
        span = (begin_ms, end_ms)
        found = await self._query(topic, unique_id, "U", span, MESSAGES_DEFAULT)
        return _at_least_one(
            [message for message in found if message.msg_id == unique_id],
            f"no message of topic {topic} has the id {unique_id}",
        )

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        max_messages: int = MESSAGES_DEFAULT,
    ) -> list[MessageExt]:
        """Return messages that were sent with a key, sorted by when they were stored.

        Brokers find them by an index. One whose index is switched off says so in the error.

        Args:
            topic: theirs.
            key: one of `Message.keys`.
            begin_ms: stored at this time or later, in epoch ms.
            end_ms: stored at this time or before; None: until now.
            max_messages: at most so many from each broker, the latest; brokers give 64 at most.

        Raises:
            UsageError: `max_messages` is not positive.
            TopicNotFoundError: no name server knows the topic.
            QueryNotFoundError: no broker has one.
        """
        found = await self._query(topic, key, "K", (begin_ms, end_ms), max_messages)
        # An index finds by a hash of the key.
        return _at_least_one(
            [message for message in found if key in message.keys],
            f"no message of topic {topic} has the key {key}",
        )

    async def messages_by_tag(
        self,
        topic: str,
        tags: str,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        max_messages: int = MESSAGES_DEFAULT,
    ) -> list[MessageExt]:
        """Return messages that were sent with these tags, sorted by when they were stored.

        `tags` is `Message.tags` as a whole; else as `messages_by_key`. Java's brokers find tags
        since 5.4.
        """
        found = await self._query(topic, tags, "T", (begin_ms, end_ms), max_messages)
        return _at_least_one(
            [message for message in found if message.tags == tags],
            f"no message of topic {topic} has the tag {tags}",
        )

    async def _query(
        self, topic: str, key: str, kind: str, span: tuple[int, int | None], max_messages: int
    ) -> list[MessageExt]:
        """Return what any master of the topic finds, sorted by when it was stored.

        Raises:
            UsageError: `max_messages` is not positive.
            QueryNotFoundError: none finds any; the text has the first one's answer.
        """
        if max_messages < 1:
            raise UsageError(f"max_messages is {max_messages}: at least 1")
        answers = await self._ask_masters(topic, key, kind, span, max_messages)
        found = [one for answer in answers.values() if isinstance(answer, list) for one in answer]
        for answer in answers.values():
            if isinstance(answer, TransportError):
                raise answer
            if isinstance(answer, QueryNotFoundError) and not found:
                raise QueryNotFoundError(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"no message of topic {topic} was found by the {_KINDS[kind]} {key}: "
                    f"{answer.remark}",
                )
        return sorted(found, key=lambda message: (message.store_at_ms, message.physical_offset))

    async def _ask_masters(
        self, topic: str, key: str, kind: str, span: tuple[int, int | None], max_messages: int
    ) -> dict[str, list[MessageExt] | QueryNotFoundError | TransportError]:
        """Return by broker name what each master of the topic finds, or why it finds nothing."""
        begin_ms, end_ms = span
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=max_messages,
            begin_timestamp=begin_ms,
            end_timestamp=_EVER_MS if end_ms is None else end_ms,
            index_type=kind,
            is_unique_key=True if kind == "U" else None,
        )
        answers: dict[str, list[MessageExt] | QueryNotFoundError | TransportError] = {}
        for name, server in (await self._topic_masters(topic)).items():
            try:
                messages = await calls_admin_messages.query(server, header)
            except (QueryNotFoundError, TransportError) as error:
                answers[name] = error
                continue
            for message in messages:
                message.broker_name = name
            answers[name] = messages
        return answers

    async def _broker_name(self, address: str) -> str:
        """Return the name of the broker at an address; "" where no name server knows it."""
        for name, broker in (await self.cluster_info()).brokers.items():
            if address in broker.broker_addrs.values():
                return name
        return ""


def lacks_index(error: QueryNotFoundError) -> bool:
    """Return whether a broker found nothing because its key index is off, or is being made.

    What was asked for may be there all the same. Kourou's brokers say so; Java's do not.
    """
    return any(text in error.remark for text in _LACKS_INDEX)


def _at_least_one(messages: list[MessageExt], otherwise: str) -> list[MessageExt]:
    if not messages:
        raise QueryNotFoundError(ResponseCode.QUERY_NOT_FOUND, otherwise)
    return messages
