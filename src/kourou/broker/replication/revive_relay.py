"""Stores checkpoints and acks of a broker's pops at the masters of other broker names.

A slave that acts for its master stores them so, since its log has only what the master has written;
and so does the master for the acks of such pops after its return. All records of a pop must lie in
one queue of the revive topic there, which the receipt handle tells: its field for the revive queue
holds a *target*.

    target    1000 * (1 + the low 16 bits of the CRC-32 of the broker's name) + queue id

A number of 1000 and more is no queue of this broker, nor that of ordered pops. Any broker of the
name can find the target again, also after a restart, and a client only returns it.

Source: EscapeBridge.asyncRemotePutMessageToSpecificQueue, apache/rocketmq 5.5.0, where the hash of
the topic and the own address chooses the queue each time, among those that are known then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final
from zlib import crc32

from kourou.broker.replication.escape_bridge import EscapeBridge, RemoteQueue
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import KourouError
from kourou.model.properties import decode_properties
from kourou.protocol.record.encode import RecordDraft

TARGET_MIN: Final = 1_000
_PAUSE_S: Final = 5.0
"""Time for which a broker that has refused a record is not chosen."""


def is_target(revive_queue: int) -> bool:
    """Return whether the revive queue of a receipt handle is a target."""
    return revive_queue >= TARGET_MIN


class ReviveRelay:
    """The way of one broker's revive records to others."""

    def __init__(self, bridge: EscapeBridge, topic: str, seed: str) -> None:
        """Send by `bridge`.

        Args:
            bridge: sends to other brokers.
            topic: the revive topic.
            seed: a text that differs between brokers, so that they choose different queues.
        """
        self._bridge = bridge
        self._topic = topic
        self._seed = crc32(seed.encode())
        self._not_before_s: dict[str, float] = {}

    async def choose(self) -> int | None:
        """Return a target for further pops, the same while that can be; None if there is none."""
        try:
            queues = await self._bridge.queues(self._topic)
        except (KourouError, OSError):
            return None
        now_s = asyncio.get_running_loop().time()
        targets = [
            target_of(queue)
            for queue in _distinct(queues)
            if now_s >= self._not_before_s.get(queue.broker_name, 0.0)
        ]
        return targets[self._seed % len(targets)] if targets else None

    async def put(self, target: int, draft: RecordDraft) -> PutResult:
        """Store a record at a target, durably; any other result is not OK."""
        try:
            queues = await self._bridge.queues(self._topic)
        except (KourouError, OSError) as error:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
        queue = next((one for one in _distinct(queues) if target_of(one) == target), None)
        if queue is None:
            reason = "the master of another broker name that revives these pops is away"
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        result = await self._bridge.send(draft, decode_properties(draft.properties), queue)
        if result.status is not PutStatus.OK:
            until_s = asyncio.get_running_loop().time() + _PAUSE_S
            self._not_before_s[queue.broker_name] = until_s
        return result


def target_of(queue: RemoteQueue) -> int:
    """Return the target of a queue."""
    return TARGET_MIN * (1 + (crc32(queue.broker_name.encode()) & 0xFFFF)) + queue.queue_id


def _distinct(queues: Iterable[RemoteQueue]) -> list[RemoteQueue]:
    """Return the queues whose target names no other one, sorted."""
    known = sorted({queue for queue in queues if queue.queue_id < TARGET_MIN})
    counts = Counter(map(target_of, known))
    return [queue for queue in known if counts[target_of(queue)] == 1]
