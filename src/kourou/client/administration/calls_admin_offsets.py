"""Administration requests for offsets: each coroutine sends one request, without retries.

All raise TransportError if no answer arrives and RemoteError if the server refuses.
"""

from __future__ import annotations

from typing import Final

from kourou.client import calls_consume
from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import with_plain_names
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.offsets import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
    decode_reset_offsets,
)

END_OF_QUEUE: Final = -1
"""A special time that means the end of the queue."""
_FAR_FUTURE_MS: Final = 253_402_300_799_000  # the year 9999


async def reset_topic(
    broker: Server, group: str, topic: str, at_ms: int
) -> dict[MessageQueue, int]:
    """Reset the group's offsets by time in all queues of one broker; return the new offsets.

    `at_ms` is in epoch milliseconds, or END_OF_QUEUE.
    """
    header = ResetOffsetRequestHeader(topic, group, at_ms, is_force=True)
    return await _reset(broker, header)


async def reset_queue(
    broker: Server, group: str, queue: MessageQueue, offset: int
) -> dict[MessageQueue, int]:
    """Reset the group's offset in one queue; return the new offsets.

    A broker older than 5.0 ignores the queue and the offset, and resets all queues by the time in
    the request. That time is in the future and not forced, so such a broker keeps the offset of
    each queue.
    """
    header = ResetOffsetRequestHeader(
        queue.topic, group, _FAR_FUTURE_MS, is_force=False, queue_id=queue.queue_id, offset=offset
    )
    return await _reset(broker, header)


async def clone_offsets(broker: Server, source: str, destination: str, topic: str | None) -> None:
    """Copy the offsets of one group to another on one broker, in one topic or in all."""
    header = CloneGroupOffsetRequestHeader(source, destination, topic, offline=True)
    await broker.request_body(RequestCode.CLONE_GROUP_OFFSET, header)


async def commit(broker: Server, group: str, queue: MessageQueue, offset: int) -> None:
    """Commit the group's offset in one queue, as a member would."""
    await calls_consume.update_offset(
        broker.pool, broker.address, group, queue, offset, timeout_s=broker.timeout_s
    )


async def offset_at(broker: Server, queue: MessageQueue, at_ms: int) -> int:
    """Return the offset of the first message stored at a time or later, or the end of the queue."""
    if at_ms == END_OF_QUEUE:
        return await calls_consume.max_offset(
            broker.pool, broker.address, queue, timeout_s=broker.timeout_s
        )
    return await calls_consume.search_offset(
        broker.pool, broker.address, queue, at_ms, timeout_s=broker.timeout_s
    )


async def _reset(broker: Server, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
    body = await broker.request_body(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    return with_plain_names(broker.pool.namespace, decode_reset_offsets(body))
