"""All messages of a store's queue, read as the broker reads them: from memory, else compared."""

from __future__ import annotations

from typing import Final

from kourou.model.message import MessageExt
from kourou.protocol.message_decoding import decode_messages
from kourou.store.message_store import GetRequest, MessageStore

_ROUND: Final = 32
_ROUND_BYTES: Final = 1 << 20


def stored_messages(store: MessageStore, topic: str, queue_id: int) -> list[MessageExt]:
    """Return the messages of the queue, each at the offset after the one before.

    Raises:
        AssertionError: an offset has no message, or one of another place.
        KourouError: the store refuses a message.
    """
    messages: list[MessageExt] = []
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    at = low
    while at < high:
        asked = GetRequest(at, _ROUND, _ROUND_BYTES, None)
        found = store.get_resident(topic, queue_id, asked) or store.get(topic, queue_id, asked)
        store.write_repaired(found.repaired)
        given = decode_messages(found.body)
        assert given, f"nothing at {at} of {topic}/{queue_id}: {found.plan.status}"
        for message in given:
            place = message.topic, message.queue_id, message.queue_offset
            assert place == (topic, queue_id, at), f"{place} at {at} of {topic}/{queue_id}"
            messages.append(message)
            at += 1
    return messages
