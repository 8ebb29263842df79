"""Messages in flight as administrators see them: popped singly, in batches, or in order."""

from __future__ import annotations

import asyncio
from typing import Final

from kourou.broker.popping.in_flight import InFlight
from kourou.broker.popping.order_info import OrderedQueue, OrderInfos
from kourou.clock import Clock

CHECKPOINTS_PER_TURN: Final = 2_000
"""Checkpoints that are examined before other tasks run: some ms of work."""


class InvisibleMessages:
    """The messages of a broker that are popped and neither acknowledged nor visible again."""

    def __init__(self, in_flight: InFlight, order_infos: OrderInfos, clock: Clock) -> None:
        """Read the live checkpoints, and the order infos of ordered pops."""
        self._in_flight = in_flight
        self._order_infos = order_infos
        self._clock = clock

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of messages in flight of a group in a queue."""
        ordered = self._order_infos.invisible(
            OrderedQueue(topic, group, queue_id), self._clock.now_ms()
        )
        return self._in_flight.count(topic, group, queue_id) + len(ordered)

    def block_reason(self, topic: str, group: str, queue_id: int) -> str | None:
        """Return why an ordered pop gets nothing from the queue; None if it is not blocked."""
        queue = OrderedQueue(topic, group, queue_id)
        block = self._order_infos.block(queue, self._clock.now_ms())
        return None if block is None else str(block)

    async def visible_at_ms(
        self, topic: str, group: str, queue_id: int, offsets: range
    ) -> dict[int, int]:
        """Return offset -> time in epoch ms at which it becomes visible, for those in flight.

        A queue may have a million checkpoints: other tasks run meanwhile.
        """
        queue = OrderedQueue(topic, group, queue_id)
        found = {
            offset: at_ms
            for offset, at_ms in self._order_infos.invisible(queue, self._clock.now_ms())
            if offset in offsets
        }
        for number, (_, revive_at_ms, in_flight) in enumerate(
            self._in_flight.checkpoints(topic, group, queue_id, offsets), 1
        ):
            found.update((offset, revive_at_ms) for offset in in_flight if offset in offsets)
            if number % CHECKPOINTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found
