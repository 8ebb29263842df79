"""Requests of ordered consumers to lock queues (41) and to unlock them (42).

There are no replicas whose consent `lockInStrictMode` could require. So the answer is the same with
and without `onlyThisBroker`.

Source: AdminBrokerProcessor.lockBatchMQ, unlockBatchMQ, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from typing import Final

from kourou.broker.clients import NAME_LENGTH_MAX
from kourou.broker.consuming.queue_locks import QueueLocks
from kourou.broker.consuming.retry_topics import TopicTable
from kourou.errors import InvalidParameterError
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.queue_assignment import (
    LockBatch,
    LockedQueues,
    decode_lock_batch,
    encode_locked_queues,
)
from kourou.remoting.connection import Request
from kourou.remoting.steady_time import steady_ms

log = logging.getLogger(__name__)

_LOGGED_QUEUES_MAX: Final = 8
"""Limit on the queues listed in one log entry."""


class LockHandlers:
    """Serves LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    def __init__(self, locks: QueueLocks, topics: TopicTable) -> None:
        """Grant locks of `locks` for the queues that exist in `topics`."""
        self._locks = locks
        self._topics = topics

    def on_lock_batch_mq(self, request: Request) -> RemotingCommand:
        """Lock the queues that no other client of the group holds; answer with those granted.

        Queues that do not exist here are not granted; Java's broker grants them.

        Raises:
            InvalidParameterError: a name exceeds the limit for client names.
        """
        batch = _lock_batch(request)
        queues = [queue for queue in batch.queues if self._exists(queue)]
        granted = self._locks.lock(batch.consumer_group, batch.client_id, queues, steady_ms())
        refused = set(batch.queues).difference(granted)
        if refused:
            log.debug(
                "queue.not_locked group=%s client=%s count=%d queues=%s",
                batch.consumer_group,
                batch.client_id,
                len(refused),
                sorted(refused)[:_LOGGED_QUEUES_MAX],
            )
        return response(request.command, body=encode_locked_queues(LockedQueues(tuple(granted))))

    def on_unlock_batch_mq(self, request: Request) -> RemotingCommand:
        """Unlock those of the queues that the client holds.

        Raises:
            InvalidParameterError: a name exceeds the limit for client names.
        """
        batch = _lock_batch(request)
        freed = self._locks.unlock(batch.consumer_group, batch.client_id, batch.queues)
        log.debug(
            "queue.unlocked group=%s client=%s asked=%d freed=%d",
            batch.consumer_group,
            batch.client_id,
            len(batch.queues),
            len(freed),
        )
        return response(request.command)

    def _exists(self, queue: MessageQueue) -> bool:
        topic = self._topics.get(queue.topic)
        if topic is None:
            return False
        return 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)

    def expire(self) -> None:
        """Remove locks that were not renewed in time; to be called every 10 s."""
        count = self._locks.expire(steady_ms())
        if count:
            log.info("queue_locks.expired count=%d", count)


def _lock_batch(request: Request) -> LockBatch:
    batch = decode_lock_batch(request.command.body)
    names = [
        batch.consumer_group,
        batch.client_id,
        *(queue.topic for queue in batch.queues),
    ]
    names += [queue.broker_name for queue in batch.queues]
    longest = max(map(len, names))
    if longest > NAME_LENGTH_MAX:
        raise InvalidParameterError(
            ResponseCode.INVALID_PARAMETER,
            f"a name of {longest} characters in a lock request; at most {NAME_LENGTH_MAX} "
            "are allowed",
        )
    return batch
