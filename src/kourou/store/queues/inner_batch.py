"""Inner batch: a batch of messages stored as one record; sets the batch's base offset.

The property `INNER_NUM` is the number of messages in the body, as counted by the broker.
`INNER_BASE` is the offset of the first one, which the append assigns.

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
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.keys import INNER_MESSAGES_MAX
from kourou.store.queues.batch_queue import BatchQueue
from kourou.store.queues.consumequeue import ConsumeQueue


def with_base(draft: RecordDraft, queue: ConsumeQueue) -> RecordDraft:
    """Return the batch with the queue's next offset as its base offset.

    Raises:
        InvalidMessageError: the queue is not a batch queue, or the batch has no count or one that
            an entry cannot hold.
    """
    if not isinstance(queue, BatchQueue):
        raise InvalidMessageError(
            f"topic {queue.topic} has no batch queues and cannot store inner batches"
        )
    properties = decode_properties(draft.properties)
    count = properties.get(INNER_NUM, "")
    if not (count.isdecimal() and 0 < int(count) <= INNER_MESSAGES_MAX):
        raise InvalidMessageError(
            f"an inner batch has 1 to {INNER_MESSAGES_MAX} messages; its property {INNER_NUM} is "
            f"{count!r}"
        )
    properties[INNER_BASE] = str(queue.next_offset)
    return replace(draft, properties=encode_properties(properties))
