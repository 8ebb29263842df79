"""Removing the queues of a topic while the broker goes on serving the others.

A topic may have a thousand queues, and each is a file and a directory: their removal happens off
the event loop. Meanwhile messages of the topic are refused with SERVICE_NOT_AVAILABLE. The steps,
and what a crash after each leaves, are in `kourou.store.deletion`.
"""

from __future__ import annotations

import asyncio
import logging

from kourou.broker.writing.group_commit import GroupCommit
from kourou.errors import StoreError
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)


class QueueDeletion:
    """Deletes one topic's queues after the other, in the order that they were asked for.

    Attributes:
        turn: held while a topic's files are removed. Who else removes files of queues takes it, so
            that none goes that was made anew under the same name.
    """

    def __init__(self, commit: GroupCommit, offload: Offload) -> None:
        """Delete from the store of `commit`; `offload` takes the file calls off the loop."""
        self._commit = commit
        self._offload = offload
        self.turn = asyncio.Lock()

    async def delete(self, topic: str) -> None:
        """Remove the topic's queues, durably; one that has none is no error.

        The name may be used again when this returns, and begins at offset 0. Not to be cancelled,
        but as a kill of the broker: a file call may go on beside what comes next.

        Raises:
            StoreError: the store takes no writes; nothing was changed.
            StoreError: a file call failed. The text says that the name stays refused.
        """
        async with self.turn:
            deletion = self._commit.begin_deletion(topic)
            if deletion is None:
                return
            try:
                await self._offload(deletion.note)
                deletion.forget()
                await self._offload(deletion.remove_files)
            except OSError as error:
                log.error("topic.deletion_failed name=%s error=%s", topic, error)  # noqa: TRY400
                raise StoreError(
                    f"{error}; no messages are taken for {topic} until it is deleted again or the "
                    "broker restarts"
                ) from error
            deletion.allow()
