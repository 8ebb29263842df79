"""Messages on their way from the pulls to who consumes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kourou.client.consuming.process_queue import ProcessQueue
from kourou.model.message import MessageExt


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message to consume, and the queue whose offset it holds back."""

    process_queue: ProcessQueue
    message: MessageExt

    @property
    def is_wanted(self) -> bool:
        """Whether it is still this consumer's to deliver: not given up, sent back or done."""
        return self.process_queue.holds(self.message)


class ReadyMessages:
    """Messages that nobody has taken yet, over all queues, in the order of their arrival.

    Its size is bounded by the flow control of the pulls.
    """

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    def put(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        """Add messages that `process_queue` holds."""
        for message in messages:
            self._deliveries.append(Delivery(process_queue, message))
            self._wake_one()

    def put_first(self, delivery: Delivery) -> None:
        """Give back what was taken: it is the next to be taken again."""
        self._deliveries.appendleft(delivery)
        self._wake_one()

    async def take(self) -> Delivery | None:
        """Wait for a message and take it; None once `close` was called. Cancelling takes none."""
        while not self._is_closed:
            while self._deliveries:
                delivery = self._deliveries.popleft()
                if delivery.is_wanted:
                    return delivery
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker.cancelled():
                    self._takers.remove(taker)  # or they gather, where no message comes
                else:
                    self._wake_one()  # it was woken for a message that another can take
                raise
        return None

    def take_more(self, process_queue: ProcessQueue, limit: int) -> list[Delivery]:
        """Take those at the front that are of the same queue, at most `limit`; do not wait."""
        taken: list[Delivery] = []
        waiting = self._deliveries
        while len(taken) < limit and waiting and waiting[0].process_queue is process_queue:
            delivery = waiting.popleft()
            if delivery.is_wanted:
                taken.append(delivery)
        return taken

    def close(self) -> None:
        """Give out no more messages; those who wait get None."""
        self._is_closed = True
        self._deliveries.clear()
        while self._takers:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return
