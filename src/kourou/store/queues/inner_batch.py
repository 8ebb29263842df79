"""A batch of messages that is stored as one record, an inner batch: what the store adds to it.

Its property `INNER_NUM` says how many messages the body has, as the broker counted them;
`INNER_BASE` the offset of the first one, which is known when it is appended.

Source: BatchConsumeQueue.assignQueueOffset, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from dataclasses import replace

from kourou.errors import InvalidMessageError
from kourou.model.properties import (
    INNER_BASE,
    INNER_NUM,
    decode_properties,
    encode_properties,
)
from kourou.protocol.message_layout import RecordDraft
from kourou.store.queues.batch_queue import BatchQueue
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.dispatch import INNER_MESSAGES_MAX


def with_base(draft: RecordDraft, queue: ConsumeQueue) -> RecordDraft:
    """Return the batch with the offset that it gets as the next of the queue.

    Raises:
        InvalidMessageError: the queue is no batch queue, or the batch has no count, or one that an
            entry cannot hold.
    """
    if not isinstance(queue, BatchQueue):
        raise InvalidMessageError(f"{queue.topic} has no batch queues: it takes no inner batches")
    properties = decode_properties(draft.properties)
    count = properties.get(INNER_NUM, "")
    if not (count.isdecimal() and 0 < int(count) <= INNER_MESSAGES_MAX):
        raise InvalidMessageError(
            f"an inner batch of {count or 'no count of'} messages, 1 to {INNER_MESSAGES_MAX} needed"
        )
    properties[INNER_BASE] = str(queue.next_offset)
    return replace(draft, properties=encode_properties(properties))
