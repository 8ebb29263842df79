"""AdminClient methods for messages: find them by position, id, key or tag.

No method changes offsets of groups. Only `message_at`, which pulls, requires that the topic is
readable.
"""

from __future__ import annotations

from typing import Final

from kourou.client import calls_consume
from kourou.client.administration.admin_calls import AdminCalls, Server
from kourou.client.namespacing import remove_namespace
from kourou.client.pull_result import PullResult, PullStatus
from kourou.errors import (
    QueryNotFoundError,
    RemoteSystemError,
    TransportError,
    UsageError,
)
from kourou.filter.tags import parse_tags
from kourou.model.message import MessageExt
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SUB_ALL
from kourou.model.topic import TOOLS_GROUP
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.pulling import QueryMessageRequestHeader, ViewMessageRequestHeader
from kourou.protocol.record.decode import decode_message, decode_messages
from kourou.remoting.network import format_address

_READ_BYTES_MAX: Final = 16 * 1024 * 1024

MESSAGES_DEFAULT: Final = 64
"""Default maximum number of messages of a search by key, the same as mqadmin's."""

_EVER_MS: Final = (1 << 63) - 1
_KINDS: Final = {"U": "id", "K": "key", "T": "tag"}
"""Index types of QUERY_MESSAGE, with their names in error texts."""
_LACKS_INDEX: Final = ("messageIndexEnable is false", "the key index is being made")
"""Parts of a remark if the index is off or incomplete: see `broker/pulling/query.py`."""


class MessageAdmin(AdminCalls):
    """Finds messages."""

    async def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """Return the message with an offset message id, from the broker in the id.

        The id contains the broker's address and the position in its log. It is called OffsetID by
        mqadmin and is `MessageExt.offset_msg_id`. For the id set by a producer, use
        `message_by_unique_key`.

        Raises:
            InvalidMessageError: the text is not an offset message id.
            QueryNotFoundError: the broker has no message at that position, or no longer.
            ConnectFailedError: there is no broker at the address in the id.
        """
        host, physical_offset = decode_offset_msg_id(offset_msg_id)
        server = self._server(format_address(host))
        message = await message_at_byte(server, physical_offset)
        message.broker_name = await self._broker_name(server.address)
        return message

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at an offset of a queue.

        Raises:
            UsageError: the offset is negative.
            TopicNotFoundError: the name servers do not have the topic, or it is not on the broker.
            QueryNotFoundError: the queue does not have the offset; the text has its range.
        """
        if offset < 0:
            raise UsageError(f"the queue offset {offset} is negative")
        server = await self._topic_master(queue.topic, queue.broker_name)
        result = await read_queue(server, queue, offset, 1)
        found = result.messages if result.status is PullStatus.FOUND else []
        for message in found:
            if message.queue_offset == offset:
                return message
        if result.min_offset >= result.max_offset:
            stored = f"it is empty, and its next offset is {result.max_offset}"
        else:
            stored = f"it has {result.min_offset} to {result.max_offset - 1}"
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND,
            f"{queue.topic} {queue.broker_name}/{queue.queue_id} has no offset {offset}: {stored}",
        )

    async def message_by_unique_key(
        self, topic: str, unique_id: str, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> MessageExt:
        """Return the message with a unique id; of several, the one stored first.

        Arguments and errors are those of `messages_by_unique_key`.
        """
        return (
            await self.messages_by_unique_key(topic, unique_id, begin_ms=begin_ms, end_ms=end_ms)
        )[0]

    async def messages_by_unique_key(
        self, topic: str, unique_id: str, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        """Return the messages with a unique id, at least one, sorted by store time.

        There are several if a send was retried after its answer was lost.

        Args:
            topic: the topic.
            unique_id: `SendReceipt.msg_id`, the id set by the producer.
            begin_ms: only messages stored at this time or later, in epoch ms.
            end_ms: only messages stored at this time or earlier; None: without limit.

        Raises:
            TopicNotFoundError: the name servers do not have the topic.
            QueryNotFoundError: no broker has such a message.
        """
        span = (begin_ms, end_ms)
        found = await self._query(topic, unique_id, "U", span, MESSAGES_DEFAULT)
        return _not_empty(
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
        """Return messages that were sent with a key, sorted by store time.

        Brokers find them by an index. If the index of a broker is off, its error says so.

        Args:
            topic: the topic.
            key: one of `Message.keys`.
            begin_ms: only messages stored at this time or later, in epoch ms.
            end_ms: only messages stored at this time or earlier; None: without limit.
            max_messages: maximum number of messages from each broker, the latest ones; brokers
                return at most 64.

        Raises:
            UsageError: `max_messages` is not positive.
            TopicNotFoundError: the name servers do not have the topic.
            QueryNotFoundError: no broker has such a message.
        """
        found = await self._query(topic, key, "K", (begin_ms, end_ms), max_messages)
        # The index has hashes of keys, so other keys may match.
        return _not_empty(
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
        """Return messages that were sent with these tags, sorted by store time.

        `tags` is the complete text of `Message.tags`. Other arguments and errors are those of
        `messages_by_key`. Java's brokers support it since version 5.4.
        """
        found = await self._query(topic, tags, "T", (begin_ms, end_ms), max_messages)
        return _not_empty(
            [message for message in found if message.tags == tags],
            f"no message of topic {topic} has the tag {tags}",
        )

    async def _query(
        self, topic: str, key: str, kind: str, span: tuple[int, int | None], max_messages: int
    ) -> list[MessageExt]:
        """Return the messages that the masters of the topic find, sorted by store time.

        Raises:
            UsageError: `max_messages` is not positive.
            QueryNotFoundError: no master finds any; the text has the answer of the first one.
            TransportError: a master did not answer.
        """
        if max_messages < 1:
            raise UsageError(f"max_messages is {max_messages}: it must be at least 1")
        answers = await self._query_masters(topic, key, kind, span, max_messages)
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

    async def _query_masters(
        self, topic: str, key: str, kind: str, span: tuple[int, int | None], max_messages: int
    ) -> dict[str, list[MessageExt] | QueryNotFoundError | TransportError]:
        """Return, by broker name, the messages found by each master of the topic, or its error."""
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
                messages = await query_messages(server, header)
            except (QueryNotFoundError, TransportError) as error:
                answers[name] = error
                continue
            for message in messages:
                message.broker_name = name
            answers[name] = messages
        return answers

    async def _broker_name(self, address: str) -> str:
        """Return the name of the broker at an address; "" if it is not registered."""
        for name, broker in (await self.cluster_info()).brokers.items():
            if address in broker.broker_addrs.values():
                return name
        return ""


def lacks_index(error: QueryNotFoundError) -> bool:
    """Return whether a broker found nothing because its key index is off or being rebuilt.

    The broker may then have matching messages nevertheless. Only Kourou's brokers report it.
    """
    return any(text in error.remark for text in _LACKS_INDEX)


def _not_empty(messages: list[MessageExt], error_text: str) -> list[MessageExt]:
    if not messages:
        raise QueryNotFoundError(ResponseCode.QUERY_NOT_FOUND, error_text)
    return messages


# Requests to one server, without retries. They raise TransportError if no answer arrives, and
# RemoteError if the server refuses.


async def read_queue(
    broker: Server, queue: MessageQueue, offset: int, max_messages: int
) -> PullResult:
    """Pull messages with any tag from the queue offset `offset` on, without long polling."""
    return await calls_consume.pull(
        broker.pool,
        broker.address,
        TOOLS_GROUP,
        queue,
        offset,
        subscription=parse_tags(queue.topic, SUB_ALL),
        max_messages=max_messages,
        max_bytes=_READ_BYTES_MAX,
        timeout_s=broker.timeout_s,
    )


async def message_at_byte(broker: Server, physical_offset: int) -> MessageExt:
    """Return the message that begins at a byte of the broker's commit log.

    Raises:
        QueryNotFoundError: there is no message, or no longer.
    """
    header = ViewMessageRequestHeader(physical_offset)
    try:
        message = decode_message(await broker.request_body(RequestCode.VIEW_MESSAGE_BY_ID, header))
    except RemoteSystemError as error:
        # Brokers use this general code for a message that is not found.
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND, f"{broker.address}: {error.remark}"
        ) from error
    remove_namespace(broker.pool.namespace, (message,))
    return message


async def query_messages(broker: Server, header: QueryMessageRequestHeader) -> list[MessageExt]:
    """Return the messages that one broker finds by key or id.

    Raises:
        QueryNotFoundError: the broker finds none.
    """
    messages = decode_messages(await broker.request_body(RequestCode.QUERY_MESSAGE, header))
    remove_namespace(broker.pool.namespace, messages)
    return messages
