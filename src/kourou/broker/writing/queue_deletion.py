"""Deletes the queues of a topic while the broker serves other topics.

A topic may have a thousand queues, each with files and a directory. They are removed off the event
loop. Meanwhile messages to the topic are refused with SERVICE_NOT_AVAILABLE. The steps, and the
state after a crash in each, are in `kourou.store.deletion`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kourou.broker.writing.group_commit import GroupCommit
from kourou.errors import ChangeNotCopiedError, StoreError
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)


class QueueDeletion:
    """Deletes the queues of topics, one topic at a time, in the order of the calls.

    Attributes:
        lock: held while a topic's files are removed. Any other code that removes queue files must
            hold it too, so that it does not remove a new file of the same name.
        order: puts the deletion of a topic's records below a position into the log, and returns
            when the in-sync set has it; None without a controller, and on a slave. A deletion that
            a failover can undo must not have removed anything.
    """

    def __init__(self, commit: GroupCommit, offload: Offload) -> None:
        """Delete from the store of `commit`; `offload` runs the file calls off the loop."""
        self._commit = commit
        self._offload = offload
        self.lock = asyncio.Lock()
        self.order: Callable[[str, int], Awaitable[None]] | None = None

    async def delete(self, topic: str, forget: Callable[[], Awaitable[None]] | None = None) -> None:
        """Delete the topic's queues durably; a topic without queues is no error.

        When this returns, the name may be used again, and its queues start at offset 0. Cancel this
        only to simulate a kill of the broker: a file call may still run afterwards.

        Args:
            topic: the topic's name.
            forget: removes what refers to messages of the topic, while there are no queues and no
                new messages are accepted; may raise OSError.

        Raises:
            StoreError: the store refuses writes, and nothing was changed; or a file call failed,
                and messages to the topic stay refused, as the text says.
        """
        async with self.lock:
            deletion = self._commit.begin_deletion(topic)
            if deletion is not None and self.order is not None:
                try:
                    await self.order(topic, deletion.log_end)
                except ChangeNotCopiedError:  # nothing was appended
                    deletion.allow()
                    raise
            try:
                if deletion is not None:
                    await self._offload(deletion.note)
                    deletion.forget()
                    await self._offload(deletion.remove_files)
                if forget is not None:
                    await forget()
            except OSError as error:
                log.error("topic.deletion_failed name=%s error=%s", topic, error)  # noqa: TRY400
                raise StoreError(
                    f"{error}; messages to topic {topic} are refused until it is deleted again or "
                    "the broker restarts"
                ) from error
            if deletion is not None:
                deletion.allow()

    async def follow(self, topic: str, below: int) -> bool:
        """Delete the topic's queues with records below a log position, as the log orders it.

        Nothing is appended to the topic by this broker meanwhile; a slave may dispatch records of a
        newer topic of this name. Returns False if this deletion was followed before.

        Raises:
            StoreError: the store refuses writes, or a file call failed: the next start completes
                what was noted.
        """
        async with self.lock:
            deletion = self._commit.followed_deletion(topic, below)
            if deletion is None:
                return False
            try:
                await self._offload(deletion.note)
                while deletion.remove_one():  # noqa: ASYNC110 - each call does a step of it
                    await asyncio.sleep(0)
            except OSError as error:
                raise StoreError(
                    f"the queues of topic {topic} cannot be deleted: {error}"
                ) from error
            return True
