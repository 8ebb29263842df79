"""Requests of ordered consumers to lock queues (41) and to unlock them (42).

There are no replicas whose consent `lockInStrictMode` could require. So the answer is the same with
and without `onlyThisBroker`.

Source: AdminBrokerProcessor.lockBatchMQ, unlockBatchMQ, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
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
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.steady_time import steady_ms

log = logging.getLogger(__name__)

_LOGGED_QUEUES_MAX: Final = 8
"""Limit on the queues listed in one log entry."""


class LockHandlers:
    """Serves LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    def __init__(
        self,
        locks: QueueLocks,
        topics: TopicTable,
        later: DeferredReplies,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        """Serve the requests.

        Args:
            locks: the locks of all groups.
            topics: queues that exist here are granted.
            later: answers requests after the locks are saved.
            save: writes the locks if a holder has changed.
        """
        self._locks = locks
        self._topics = topics
        self._later = later
        self._save = save

    def on_lock_batch_mq(self, request: Request) -> RemotingCommand | None:
        """Lock the queues that no other client of the group holds; answer with those granted.

        Queues that do not exist here are not granted; Java's broker grants them. If a queue has a
        new holder, the answer waits until that is on the disk: after a kill, the broker would grant
        the queue to another member. Renewals are answered at once.

        Raises:
            InvalidParameterError: a name exceeds the limit for client names.
        """
        batch = _lock_batch(request)
        queues = [queue for queue in batch.queues if self._exists(queue)]
        changes = self._locks.holder_changes
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
        answer = response(request.command, body=encode_locked_queues(LockedQueues(tuple(granted))))
        if self._locks.holder_changes == changes:
            return answer
        self._later.answer(request, lambda: self._answer_when_saved(answer))
        return None

    async def _answer_when_saved(self, answer: RemotingCommand) -> RemotingCommand:
        try:
            await self._save()
        except OSError as error:  # the locks hold, except across a kill; they are saved again soon
            log.warning("queue_locks.not_saved reason=%s", error)
        return answer

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
