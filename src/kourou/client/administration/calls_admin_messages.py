"""Requests of administration about messages: each coroutine asks one broker, once.

All raise TransportError when no answer comes and RemoteError when the broker refuses.
"""

from __future__ import annotations

from kourou.client.administration.admin_calls import Server
from kourou.client.namespacing import take_out
from kourou.errors import QueryNotFoundError, RemoteSystemError
from kourou.model.message import MessageExt
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.headers_consume import QueryMessageRequestHeader, ViewMessageRequestHeader
from kourou.protocol.message_decoding import decode_message, decode_messages


async def message_at_byte(broker: Server, physical_offset: int) -> MessageExt:
    """Return the message that begins at a byte of the broker's commit log.

    Raises:
        QueryNotFoundError: none does, or no longer.
    """
    header = ViewMessageRequestHeader(physical_offset)
    try:
        message = decode_message(await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, header))
    except RemoteSystemError as error:
        # The code that brokers give to everything that goes wrong; here it is this.
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND, f"{broker.address}: {error.remark}"
        ) from error
    take_out(broker.pool.namespace, (message,))
    return message


async def query(broker: Server, header: QueryMessageRequestHeader) -> list[MessageExt]:
    """Return the messages that one broker finds by key or id.

    Raises:
        QueryNotFoundError: it finds none.
    """
    messages = decode_messages(await broker.ask(RequestCode.QUERY_MESSAGE, header))
    take_out(broker.pool.namespace, messages)
    return messages
