"""Start offset of a queue that was just assigned to a member.

Source: RebalancePushImpl.computePullFromWhereWithException.
"""

from __future__ import annotations

from typing import Final

from kourou.client import calls_consume
from kourou.client.calls_consume import CommittedOffset
from kourou.client.consuming.consumer_config import ConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline
from kourou.model.group import ConsumeFromWhere
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic

_CONSUME_TIMESTAMP_AGE_MS: Final = 30 * 60_000
"""Age in ms at which ConsumeFromWhere.TIMESTAMP starts without `consume_timestamp_ms`: half an hour
before the queue is started."""


async def find_start_offset(
    instance: ClientInstance, offsets: Offsets, queue: MessageQueue, config: ConsumerConfig
) -> tuple[int, bool]:
    """Return the queue offset of the first pull, and whether it is the group's committed offset.

    For a group without a committed offset, `consume_from_where` decides:

                      topic                                        retry topic
        LAST_OFFSET   its end                                      0
        FIRST_OFFSET  0                                            0
        TIMESTAMP     the first message at `consume_timestamp_ms`  its end

    The offset is 0 instead if the queue's first message is still in the broker's memory or the
    queue has no message yet, so that a topic created together with its group is consumed from its
    start. If offset 0 has expired, the response to the first pull corrects it.

    Raises:
        TransportError, RemoteError: the broker did not answer. The queue must not be started then:
            any guess would skip or repeat messages.
    """
    committed = await offsets.fetch(queue)
    if committed.offset is not None:
        offsets.set_topic_begin(queue, committed.topic_begin)
        return committed.offset, True
    offset = await _find_first_offset(instance, offsets, queue, config)
    offsets.set_topic_begin(queue, committed.topic_begin)
    return offset, False


async def _find_first_offset(
    instance: ClientInstance, offsets: Offsets, queue: MessageQueue, config: ConsumerConfig
) -> int:
    """Return the queue offset at which a group without a committed offset starts."""
    where, timestamp_ms = config.consume_from_where, config.consume_timestamp_ms
    if timestamp_ms is None:
        timestamp_ms = instance.runtime.clock.now_ms() - _CONSUME_TIMESTAMP_AGE_MS
    is_retry = is_retry_topic(queue.topic)
    if where is ConsumeFromWhere.FIRST_OFFSET or (
        where is ConsumeFromWhere.LAST_OFFSET and is_retry
    ):
        return 0

    async def ask(address: str, deadline: Deadline) -> int:
        pool, timeout_s = instance.pool, deadline.remaining_s()
        if where is ConsumeFromWhere.TIMESTAMP and not is_retry:
            return await calls_consume.search_offset(
                pool, address, queue, timestamp_ms, timeout_s=timeout_s
            )
        return await calls_consume.max_offset(pool, address, queue, timeout_s=timeout_s)

    # The end is queried before `zero_if_new`: queried after it, the end of a queue that was empty
    # could lie behind its first messages.
    offset = await instance.call_broker(queue, config.request_timeout_ms, ask)
    if offset and (await offsets.fetch(queue, zero_if_new=True)).offset == 0:
        offset = 0
    return offset


async def find_offset_in_bounds(
    instance: ClientInstance, offsets: Offsets, queue: MessageQueue, config: ConsumerConfig
) -> tuple[int, bool]:
    """Return the next offset to pull in a queue that ends before this member's offset.

    The queue's end was lost, its topic deleted and created again, or the group's offset was reset.
    A broker that lost the end has lowered the committed offset, too. A broker that deleted the
    topic has no committed offset: the group then starts at its lowest offset, so as not to skip
    messages stored at reused offsets. Offsets in a local file reflect neither case.

    Returns:
        The queue offset to pull next, and whether it is the group's committed offset.

    Raises:
        TransportError, RemoteError: as `find_start_offset`.
    """
    found = await offsets.fetch(queue) if offsets.is_remote else CommittedOffset(None, None)
    committed = found.offset

    async def ask(address: str, deadline: Deadline) -> tuple[int, int]:
        pool = instance.pool
        low = await calls_consume.min_offset(pool, address, queue, timeout_s=deadline.remaining_s())
        high = await calls_consume.max_offset(
            pool, address, queue, timeout_s=deadline.remaining_s()
        )
        return low, high

    # Queried after the committed offset: another member may have committed since, and queues only
    # grow.
    low, high = await instance.call_broker(queue, config.request_timeout_ms, ask)
    offsets.set_topic_begin(queue, found.topic_begin)
    if committed is None or committed > high:
        return low, False
    return max(low, committed), True
