"""Messages as pulls return them, for tests that do not pull."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue

QUEUE: Final = MessageQueue("T", "broker-a", 0)
"""The queue of the messages here."""


def message_at(
    queue_offset: int = 0,
    size: int = 1,
    *,
    topic: str = QUEUE.topic,
    properties: Mapping[str, str] | None = None,
) -> MessageExt:
    """Return a message at a queue offset, with a body of `size` bytes."""
    return MessageExt(
        topic=topic,
        body=bytes(size),
        properties=dict(properties or {}),
        flag=0,
        queue_id=QUEUE.queue_id,
        queue_offset=queue_offset,
        physical_offset=queue_offset * 100,
        sys_flag=0,
        born_at_ms=0,
        born_host=("127.0.0.1", 1),
        store_at_ms=0,
        store_host=("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        store_size=100,
        body_crc=0,
        broker_name=QUEUE.broker_name,
    )
