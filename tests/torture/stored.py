"""Reads all messages of a store's queue like a broker: from memory, else with verification."""

from __future__ import annotations

from typing import Final

from kourou.model.message import MessageExt
from kourou.protocol.record.decode import decode_messages
from kourou.store.message_store import GetRequest, MessageStore

_ROUND: Final = 32
_ROUND_BYTES: Final = 1 << 20


def stored_messages(store: MessageStore, topic: str, queue_id: int) -> list[MessageExt]:
    """Return the messages of the queue, with consecutive offsets.

    Raises:
        AssertionError: an offset has no message, or one of another queue or offset.
        KourouError: the store refuses to return a message.
    """
    messages: list[MessageExt] = []
    low, high = store.reader.min_offset(topic, queue_id), store.reader.max_offset(topic, queue_id)
    at = low
    while at < high:
        asked = GetRequest(at, _ROUND, _ROUND_BYTES, None)
        found = store.reader.get_resident(topic, queue_id, asked) or store.reader.get(
            topic, queue_id, asked
        )
        store.writer.write_repaired(found.repaired)
        given = decode_messages(found.body)
        assert given, f"nothing at {at} of {topic}/{queue_id}: {found.plan.status}"
        for message in given:
            place = message.topic, message.queue_id, message.queue_offset
            assert place == (topic, queue_id, at), f"{place} at {at} of {topic}/{queue_id}"
            messages.append(message)
            at += 1
    return messages
