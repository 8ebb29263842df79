"""Where a member starts in a queue that it has just got.

Source: RebalancePushImpl.computePullFromWhereWithException.
"""

from __future__ import annotations

from kourou.client import calls_consume
from kourou.client.instance import ClientInstance
from kourou.client.offset_store import RemoteOffsets
from kourou.client.retrying import Deadline
from kourou.model.group import ConsumeFromWhere
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic


async def find_start_offset(
    instance: ClientInstance,
    offsets: RemoteOffsets,
    queue: MessageQueue,
    where: ConsumeFromWhere,
    timestamp_ms: int,
    *,
    timeout_ms: int,
) -> int:
    """Return the queue offset to pull first: what the group committed, if it did.

    In a queue that is new to the group, by `where`:

        where         topic                                    retry topic
        LAST_OFFSET   its end                                  0
        FIRST_OFFSET  0                                        0
        TIMESTAMP     the first message at `timestamp_ms`      its end

    An offset of 0 that expired meanwhile is corrected by the answer to the first pull.

    Raises:
        TransportError, RemoteError: the broker did not say. The queue must not be started then:
            any guess would skip or repeat messages.
    """
    committed = await offsets.fetch(queue)
    if committed is not None:
        return committed
    is_retry = is_retry_topic(queue.topic)
    if where is ConsumeFromWhere.FIRST_OFFSET:
        return 0
    if where is ConsumeFromWhere.LAST_OFFSET and is_retry:
        return 0

    async def ask(address: str, deadline: Deadline) -> int:
        pool, timeout_s = instance.pool, deadline.remaining_s()
        if where is ConsumeFromWhere.TIMESTAMP and not is_retry:
            return await calls_consume.search_offset(
                pool, address, queue, timestamp_ms, timeout_s=timeout_s
            )
        return await calls_consume.max_offset(pool, address, queue, timeout_s=timeout_s)

    return await instance.call_broker(queue, timeout_ms, ask)
