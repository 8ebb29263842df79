"""Where a member starts in a queue that it has just got.

Source: RebalancePushImpl.computePullFromWhereWithException.
"""

from __future__ import annotations

from typing import Final

from kourou.client import calls_consume
from kourou.client.consuming.consumer_config import ConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline
from kourou.model.group import ConsumeFromWhere
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic

_CONSUME_TIMESTAMP_AGE_MS: Final = 30 * 60_000
"""Where ConsumeFromWhere.TIMESTAMP begins without a time: half an hour before a queue's start."""


async def find_start_offset(
    instance: ClientInstance, offsets: Offsets, queue: MessageQueue, config: ConsumerConfig
) -> tuple[int, bool]:
    """Return the queue offset to pull first, and whether that is what the group committed.

    In a queue that is new to the group it is 0 if the queue is so young that its first message is
    still in the broker's memory or has yet to come: a topic that came up together with its group is
    consumed whole. Else, by `consume_from_where`:

                      topic                                        retry topic
        LAST_OFFSET   its end                                      0
        FIRST_OFFSET  0                                            0
        TIMESTAMP     the first message at `consume_timestamp_ms`  its end

    An offset of 0 that expired meanwhile is corrected by the answer to the first pull.

    Raises:
        TransportError, RemoteError: the broker did not say. The queue must not be started then:
            any guess would skip or repeat messages.
    """
    committed = await offsets.fetch(queue)
    if committed is not None:
        return committed, True
    where, timestamp_ms = config.consume_from_where, config.consume_timestamp_ms
    if timestamp_ms is None:
        timestamp_ms = instance.runtime.clock.now_ms() - _CONSUME_TIMESTAMP_AGE_MS
    is_retry = is_retry_topic(queue.topic)
    if where is ConsumeFromWhere.FIRST_OFFSET or (
        where is ConsumeFromWhere.LAST_OFFSET and is_retry
    ):
        return 0, False

    async def ask(address: str, deadline: Deadline) -> int:
        pool, timeout_s = instance.pool, deadline.remaining_s()
        if where is ConsumeFromWhere.TIMESTAMP and not is_retry:
            return await calls_consume.search_offset(
                pool, address, queue, timestamp_ms, timeout_s=timeout_s
            )
        return await calls_consume.max_offset(pool, address, queue, timeout_s=timeout_s)

    # Before the broker says whether the queue is young: asked after that, the end would be behind
    # the first messages of a queue that was empty then.
    offset = await instance.call_broker(queue, config.request_timeout_ms, ask)
    if offset and await offsets.fetch(queue, zero_if_new=True) == 0:
        offset = 0
    return offset, False


async def find_offset_in_bounds(
    instance: ClientInstance, offsets: Offsets, queue: MessageQueue, config: ConsumerConfig
) -> tuple[int, bool]:
    """Return where to go on in a queue that ended before this member's offset.

    Its end was lost, its topic deleted and made again, or an administrator set the group back. A
    broker that lost the end set back the committed offset, too, and one that deleted the topic has
    none: the group then begins at the start, as it must not skip what took the places of old
    messages. An offset in a file of our own says nothing of either.

    Returns:
        The queue offset to pull next, and whether it is what the group committed.

    Raises:
        TransportError, RemoteError: as `find_start_offset`.
    """
    committed = await offsets.fetch(queue) if offsets.is_remote else None

    async def ask(address: str, deadline: Deadline) -> tuple[int, int]:
        pool = instance.pool
        low = await calls_consume.min_offset(pool, address, queue, timeout_s=deadline.remaining_s())
        high = await calls_consume.max_offset(
            pool, address, queue, timeout_s=deadline.remaining_s()
        )
        return low, high

    # After the committed offset: another member may have gone on since, and queues only grow.
    low, high = await instance.call_broker(queue, config.request_timeout_ms, ask)
    if committed is None or committed > high:
        return low, False
    return max(low, committed), True
