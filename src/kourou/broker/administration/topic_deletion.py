"""Deletes topics, and finds the pop retry topics that are deleted with their topic or group.

The name of a pop retry topic of version 1 is ambiguous: `%RETRY%a_b_c` may be that of group `a` and
topic `b_c`, that of group `a_b` and topic `c`, or the retry topic of group `a_b_c`. A topic that
another group uses is kept: its records name their group, so that the other one skips those of the
deleted group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.order_table import OrderInfoTable
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.errors import ServiceNotAvailableError, StoreError
from kourou.model.topic import RETRY_PREFIX, TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2

log = logging.getLogger(__name__)

WAIT_S: Final = 10.0
"""How long a request waits in controller mode for the deletion of one topic."""
_BUILDERS: Final = (retry_topic_v1, retry_topic_v2)


class TopicDeletion:
    """Deletes topics with their queues, offsets and statistics."""

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        order_infos: OrderInfoTable,
        queue_deletion: QueueDeletion,
        on_deleted: Callable[[TopicConfig], None],
    ) -> None:
        """Delete from the tables and the store of a broker.

        Args:
            context: the broker's state and services.
            offsets: the offsets of a deleted topic are removed here.
            order_infos: saved without those of a deleted topic, before the topic has new messages.
            queue_deletion: deletes the queues of a deleted topic.
            on_deleted: called with each topic that was deleted.
        """
        self._topics = context.topics
        self._groups = context.groups
        self._stats = context.stats
        self._offsets = offsets
        self._order_infos = order_infos
        self._queue_deletion = queue_deletion
        self._on_deleted = on_deleted
        self._late: dict[asyncio.Task[None], str] = {}  # deletions that go on, unanswered

    async def delete(self, name: str) -> None:
        """Delete one topic; an unknown one is no error.

        In controller mode the in-sync set must have the deletion first, which goes on if this
        raises after `WAIT_S`.

        The queues are deleted before the topic: a crash in between leaves a topic without messages,
        and never old messages in a new topic of the same name. The offsets need not be saved: the
        next start recognizes those from before the deletion.

        Raises:
            ServiceNotAvailableError: its queues or order infos cannot be deleted, or it takes too
                long.
        """
        task = asyncio.create_task(self._delete(name), name=f"delete topic {name}")
        limit_s = None if self._queue_deletion.order is None else WAIT_S
        try:
            await asyncio.wait({task}, timeout=limit_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            await task
            return
        self._late[task] = name
        task.add_done_callback(self._on_late)
        raise ServiceNotAvailableError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"topic {name} is not deleted after {WAIT_S:.0f} s: its deletion goes on when all "
            "members of the in-sync set have it; messages to it are refused until then",
        )

    def _on_late(self, task: asyncio.Task[None]) -> None:
        name = self._late.pop(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("topic.not_deleted name=%s reason=%s", name, task.exception())

    async def _delete(self, name: str) -> None:
        async def forget() -> None:
            self._forget(name)
            await self._order_infos.save()

        try:
            await self._queue_deletion.delete(name, forget)
        except StoreError as error:
            raise ServiceNotAvailableError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"topic {name} cannot be deleted: {error}"
            ) from error

    def _forget(self, name: str) -> None:
        topic = self._topics.get(name)
        self._topics.delete(name)
        self._offsets.remove_topic(name)
        self._stats.on_topic_deleted(name)
        if topic is not None:
            self._on_deleted(topic)

    def retry_topics_of_topic(self, topic: str) -> list[str]:
        """Return the existing pop retry topics of a topic, of all groups that consume it."""
        groups = self._offsets.groups_of(topic)
        named = [(group, build(group, topic)) for group in groups for build in _BUILDERS]
        return [name for group, name in named if self._may_delete(name, group)]

    def retry_topics_of_group(self, group: str) -> list[str]:
        """Return the existing pop retry topics of a group, of all topics."""
        prefixes = tuple(build(group, "") for build in _BUILDERS)
        named = [topic.name for topic in self._topics if topic.name.startswith(prefixes)]
        return [name for name in named if self._may_delete(name, group)]

    def _may_delete(self, name: str, group: str) -> bool:
        """Return whether a pop retry topic exists, and no other group uses it."""
        if self._topics.get(name) is None:
            return False
        others = [other for other in self._offsets.groups_of(name) if other != group]
        whole = name.removeprefix(RETRY_PREFIX)
        if self._groups.get(whole) is not None:
            others.append(whole)
        if others:
            log.warning("retry_topic.kept name=%s group=%s used_by=%s", name, group, others[0])
        return not others
