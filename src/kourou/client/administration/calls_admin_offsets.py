"""The requests of administration about offsets: one request to one server, tried once.

All raise TransportError when no answer comes and RemoteError when the server refuses.
"""

from __future__ import annotations

from typing import Final

from kourou.client import calls_consume
from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import plain
from kourou.model.queue import MessageQueue
from kourou.protocol.bodies import decode_reset_offsets
from kourou.protocol.codes import RequestCode
from kourou.protocol.headers_admin_offsets import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
)

END_OF_QUEUE: Final = -1
"""As a time: behind the newest message."""
_FAR_FUTURE_MS: Final = 253_402_300_799_000  # the year 9999


async def reset_topic(
    broker: Server, group: str, topic: str, at_ms: int
) -> dict[MessageQueue, int]:
    """Let the group go on in all queues of one broker at a time; return where that is.

    Args:
        broker: who is asked.
        group: what is reset.
        topic: whose queues.
        at_ms: epoch milliseconds, or END_OF_QUEUE.
    """
    header = ResetOffsetRequestHeader(topic, group, at_ms, is_force=True)
    return await _reset(broker, header)


async def reset_queue(
    broker: Server, group: str, queue: MessageQueue, offset: int
) -> dict[MessageQueue, int]:
    """Let the group go on in one queue at an offset; return where it goes on.

    A broker older than 5.0 does not read the queue and the offset: it takes the request for one
    about all queues by the time that is in it. That time lies in the future and is not forced, by
    which such a broker lets every queue go on where it stands.
    """
    header = ResetOffsetRequestHeader(
        queue.topic, group, _FAR_FUTURE_MS, is_force=False, queue_id=queue.queue_id, offset=offset
    )
    return await _reset(broker, header)


async def clone_offsets(broker: Server, source: str, destination: str, topic: str | None) -> None:
    """Let one group go on where another stands, in one topic or in all, on one broker."""
    header = CloneGroupOffsetRequestHeader(source, destination, topic, offline=True)
    await broker.ask(RequestCode.CLONE_GROUP_OFFSET, header)


async def commit(broker: Server, group: str, queue: MessageQueue, offset: int) -> None:
    """Write the group's offset in one queue, as a member of it would."""
    await calls_consume.update_offset(
        broker.pool, broker.address, group, queue, offset, timeout_s=broker.timeout_s
    )


async def offset_at(broker: Server, queue: MessageQueue, at_ms: int) -> int:
    """Return the first offset stored at a time or later; for END_OF_QUEUE, the queue's end."""
    if at_ms == END_OF_QUEUE:
        return await calls_consume.max_offset(
            broker.pool, broker.address, queue, timeout_s=broker.timeout_s
        )
    return await calls_consume.search_offset(
        broker.pool, broker.address, queue, at_ms, timeout_s=broker.timeout_s
    )


async def _reset(broker: Server, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
    body = await broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    return plain(broker.pool.namespace, decode_reset_offsets(body))
