"""Runs of an ordered listener: messages of one queue one after the other, with one hop to a thread.

A run ends before the next message where the lock may be another's, the queue was given up, the
consumer closes, or the queue's turn is over. All that is looked at between two messages is a flag
or a clock, which any thread may.
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
"""Messages that a run is given at most. The hop is paid once for them: more would save little."""


class OrderedRuns:
    """The runs of one queue, one at a time.

    Args:
        call: calls the listener with one message.
        order: the messages.
        clock: says when the listener last got one.
        on_finished: called when messages of `order` were finished.
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
        self._given: deque[Delivery] = deque()
        self._is_first = True
        self._ends_at_s = self._locked_until_s = 0.0

    async def run(self, lasts_s: float, locked_s: float) -> Unfinished | None:
        """Call the listener with the messages that come next, until a call fails.

        What it returned from is finished when this returns, the rest put back. What failed is
        still taken then.

        Args:
            lasts_s: begin no more calls after so many seconds, but one at least.
            locked_s: begin none after so many seconds.
        """
        order, process_queue = self._order, self._order.process_queue
        now_s = self._time_s()
        self._is_first = True
        self._ends_at_s, self._locked_until_s = now_s + lasts_s, now_s + locked_s
        self._given.extend(
            [Delivery(process_queue, message) for message in order.take(RUN_MESSAGES)]
        )
        unfinished = None
        try:
            unfinished = await self._runs.run()
        finally:
            self._given.clear()  # also where a thread that nobody waits for would take more
            order.put_back_behind(0 if unfinished is None else 1)
        return unfinished

    def interrupt(self) -> None:
        """End the run under way after the call that it is in; more can follow."""
        self._locked_until_s = -math.inf

    def _next(self) -> Delivery:
        """Return the next message; raise IndexError if there is none for this run."""
        now_s = self._time_s()
        if now_s > self._locked_until_s or (now_s >= self._ends_at_s and not self._is_first):
            raise IndexError
        self._is_first = False
        return self._given.popleft()

    def _finish(self, deliveries: list[Delivery]) -> None:
        # Nobody counts on what a thread ended that was not waited for: nothing is taken then.
        self._order.finish(len(deliveries))
        self._on_finished()
