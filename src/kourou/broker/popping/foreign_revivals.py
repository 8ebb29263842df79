"""Revives pops of other brokers, whose slaves have sent their checkpoints here.

A slave that acts for its master cannot store checkpoints and acks in its log. It sends them to the
revive topic of a master of another broker name. When such a checkpoint is due, its messages are
read from the broker that it names, and stored in the retry topic here, where members of the group
pop them. That goes on beside the loop of the revive queue, since that broker may not answer.

Source: PopReviveService.getBizMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kourou.broker.popping.checkpoint import PopCheckpoint
from kourou.broker.popping.revive_store import Revived, ReviveStore
from kourou.broker.replication.foreign_messages import ForeignMessages, ForeignQueue
from kourou.errors import MalformedBodyError
from kourou.protocol.popping.revive_records import (
    CHECKPOINT_TAG,
    decode_ack,
    decode_checkpoint,
)

log = logging.getLogger(__name__)

TOGETHER_MAX: Final = 64
"""Limit on the checkpoints that are revived at the same time; others are due again later."""


def foreign_refusal(body: bytes, tag: str, broker_name: str) -> str:
    """Return why a message for the revive topic is no record of another broker; empty if it is.

    Args:
        body: of the message.
        tag: its property `TAGS`, one of `REVIVE_TAGS`.
        broker_name: of this broker, which stores its own records itself.
    """
    try:
        is_checkpoint = tag == CHECKPOINT_TAG
        name = (decode_checkpoint(body) if is_checkpoint else decode_ack(body)).broker_name
    except MalformedBodyError as error:
        return str(error)
    if not name or not name.isprintable() or name.isspace() or name == broker_name:
        return f"it names broker {name!r}, not another one"
    return ""


class ForeignRevivals:
    """The revivals of one broker that are in progress."""

    def __init__(self, store: ReviveStore, messages: ForeignMessages) -> None:
        """Read by `messages`, and store by `store`."""
        self._store = store
        self._messages = messages
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: set[asyncio.Task[None]] = set()

    def begin(
        self, checkpoint: PopCheckpoint, revive_queue: int, done: Callable[[Revived], None]
    ) -> bool:
        """Begin to revive a checkpoint, and call `done` once; return False if there is no room.

        `done` is not called if that is stopped before the messages are read.
        """
        if len(self._tasks) >= TOGETHER_MAX:
            return False
        coroutine = self._revive(checkpoint, revive_queue, done)
        task = asyncio.get_running_loop().create_task(coroutine, name="foreign revival")
        self._tasks.add(task)
        self._reading.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._reading.discard)
        return True

    async def stop(self) -> None:
        """Read no more, and return when what was read is stored."""
        for task in self._reading:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """Stop at once, like a killed process."""
        for task in self._tasks:
            task.cancel()

    async def _revive(
        self, checkpoint: PopCheckpoint, revive_queue: int, done: Callable[[Revived], None]
    ) -> None:
        key = checkpoint.key
        queue = ForeignQueue(key.broker_name, key.topic, key.queue_id)
        try:
            read = await self._messages.read(queue, sorted(checkpoint.unacked()))
            task = asyncio.current_task()
            assert task is not None, "it runs as one"
            self._reading.discard(task)
            revived = await self._store.revive_foreign(checkpoint, revive_queue, read)
        except Exception as error:  # else the checkpoint would be lost until the next start
            log.exception("foreign_pop.not_revived key=%s", key)
            revived = Revived(is_done=False, reason=str(error))
        done(revived)
