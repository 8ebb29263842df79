"""Administration requests for messages: each coroutine sends one request, without retries.

All raise TransportError if no answer arrives and RemoteError if the broker refuses.
"""

from __future__ import annotations

from typing import Final

from kourou.client import calls_consume
from kourou.client.administration.admin_calls import Server
from kourou.client.namespacing import remove_namespace
from kourou.client.pull_result import PullResult
from kourou.errors import QueryNotFoundError, RemoteSystemError
from kourou.filter.tags import parse_tags
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SUB_ALL
from kourou.model.topic import TOOLS_GROUP
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.message_decoding import decode_message, decode_messages
from kourou.protocol.pulling import QueryMessageRequestHeader, ViewMessageRequestHeader

_READ_BYTES_MAX: Final = 16 * 1024 * 1024


async def read(broker: Server, queue: MessageQueue, offset: int, max_messages: int) -> PullResult:
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


async def query(broker: Server, header: QueryMessageRequestHeader) -> list[MessageExt]:
    """Return the messages that one broker finds by key or id.

    Raises:
        QueryNotFoundError: the broker finds none.
    """
    messages = decode_messages(await broker.request_body(RequestCode.QUERY_MESSAGE, header))
    remove_namespace(broker.pool.namespace, messages)
    return messages
