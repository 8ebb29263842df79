"""Runs of an ordered listener: consecutive messages of one queue with one hop to a thread.

A run ends before the next message if the lock may be invalid, the queue was dropped, the consumer
closes, or the queue's turn is over. Between two messages only flags and a clock are read, which is
safe on any thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from kourou.client.consuming.listening.consume_order import QueueOrder
from kourou.client.consuming.listening.listener_runs import Unfinished
from kourou.client.consuming.listening.ordered_calls import OrderedCall
from kourou.client.consuming.pulling.delivery import Delivery
from kourou.clock import Clock

RUN_MESSAGES: Final = 64
"""Most messages in a run. They share the cost of one hop; a higher limit would save little."""


class OrderedRuns:
    """The runs of one queue, one at a time.

    Args:
        call: calls the listener with one message.
        order: the queue's messages by state.
        clock: the wall clock, for start times of deliveries.
        on_finished: called after messages of `order` were finished.
    """

    def __init__(
        self,
        call: OrderedCall,
        order: QueueOrder,
        clock: Clock,
        on_finished: Callable[[], None],
    ) -> None:
        self._order = order
        self._on_finished = on_finished
        self._runs = call.in_runs(self._next, self._finish, clock)
        self._time_s = self._runs.time_s
        self._deliveries: deque[Delivery] = deque()
        self._is_first = True
        self._ends_at_s = self._locked_until_s = 0.0

    async def run(self, turn_s: float, locked_s: float) -> Unfinished | None:
        """Call the listener with the next messages until a call fails.

        On return, successful messages are finished, a failed one is still taken, and the others are
        put back.

        Args:
            turn_s: start no more calls after this many seconds, except the first.
            locked_s: start no call at all after this many seconds.
        """
        order, process_queue = self._order, self._order.process_queue
        now_s = self._time_s()
        self._is_first = True
        self._ends_at_s, self._locked_until_s = now_s + turn_s, now_s + locked_s
        self._deliveries.extend(
            [Delivery(process_queue, message) for message in order.take(RUN_MESSAGES)]
        )
        unfinished = None
        try:
            unfinished = await self._runs.run()
        finally:
            self._deliveries.clear()  # an abandoned thread must not take more
            order.put_back_after(0 if unfinished is None else 1)
        return unfinished

    def interrupt(self) -> None:
        """End the current run after its running call; new ones may start."""
        self._locked_until_s = -math.inf

    def _next(self) -> Delivery:
        """Return the next message; raise IndexError if there is none for this run."""
        now_s = self._time_s()
        if now_s > self._locked_until_s or (now_s >= self._ends_at_s and not self._is_first):
            raise IndexError
        self._is_first = False
        return self._deliveries.popleft()

    def _finish(self, deliveries: list[Delivery]) -> None:
        # If the run was abandoned, no messages are taken any more, and this finishes none.
        self._order.finish(len(deliveries))
        self._on_finished()
