"""Finds the messages that a command names by an id or a position."""

from __future__ import annotations

import re
from typing import Final

from kourou.client.administration.admin import AdminClient
from kourou.errors import InvalidMessageError, QueryNotFoundError, TransportError
from kourou.model.message import MessageExt
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.queue import MessageQueue

_POSITION: Final = re.compile(r"([^/]+)/([0-9]{1,9})@([0-9]{1,18})")
_PORT_MAX: Final = 65_535


async def find_messages(admin: AdminClient, topic: str, text: str) -> list[MessageExt]:
    """Return the message with this id or position, with its copies."""
    if position := _POSITION.fullmatch(text):
        queue = MessageQueue(topic, position[1], int(position[2]))
        return [await admin.message_at(queue, int(position[3]))]
    if _is_offset_id(text):
        try:
            return [await admin.message_by_id(text)]
        except (QueryNotFoundError, TransportError):
            pass  # a unique id can look like an offset id; try it as one below
    try:
        return await admin.messages_by_unique_key(topic, text)
    except QueryNotFoundError as error:
        if "/" not in text:
            raise
        form = "a position has the form BROKER/QUEUE@OFFSET, such as broker-a/0@17"
        reason = f"no message of {topic} has the id {text}; {form}"
        raise QueryNotFoundError(error.code, reason) from error


def _is_offset_id(text: str) -> bool:
    """Return whether an id can be an offset message id.

    An offset id contains a port. In the same bytes, a unique id of a producer contains its process
    id and other data, which mostly exceed the highest port.
    """
    try:
        (_, port), physical_offset = decode_offset_msg_id(text)
    except InvalidMessageError:
        return False
    return 0 < port <= _PORT_MAX and physical_offset >= 0
