"""Messages on their way from the pulls to who consumes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.model.message import MessageExt


class Delivery:
    """One message to consume, and the queue whose offset it holds back."""

    __slots__ = ("message", "process_queue")

    # By hand: one is made for each message, and a frozen dataclass takes three times as long.
    def __init__(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        self.process_queue = process_queue
        self.message = message

    @property
    def is_wanted(self) -> bool:
        """Whether it is still this consumer's to deliver: not given up, sent back or done."""
        return self.process_queue.holds(self.message)


class Consumption(Protocol):
    """Who consumes what is pulled."""

    def put(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Consume messages that `process_queue` has begun to hold."""

    async def drain(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        """Begin with no more messages of the queue; return whether no listener has one any more.

        Waits for that, but not longer than `timeout_s`.
        """


class ReadyMessages:
    """Messages that nobody has taken yet, over all queues, in the order of their arrival.

    Its size is bounded by the flow control of the pulls. Of those who wait, messages that come
    together wake one at once, and a little later as many as are needed for what it has not taken
    till then. Waking all at once would cost more than most messages do: where consuming takes no
    time, the first has taken all before the others run.

    Attributes:
        patience_s: how much later, in seconds; 0: in the loop's next turn.
        pop: takes the next message, wanted or not, and raises IndexError if there is none. For any
            thread. `ProcessQueue.start` tells whether it is wanted.
    """

    def __init__(self) -> None:
        self.patience_s = 0.0
        self._is_waking = False
        self._deliveries: deque[Delivery] = deque()
        self.pop = self._deliveries.popleft
        self._takers: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    def put(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        """Add messages that `process_queue` holds. Ignored once closed."""
        if self._is_closed:
            return
        self._deliveries.extend([Delivery(process_queue, message) for message in messages])
        self._wake()

    def put_first(self, delivery: Delivery) -> None:
        """Give back what was taken: it is the next to be taken again. Ignored once closed."""
        if self._is_closed:
            return
        self._deliveries.appendleft(delivery)
        self._wake()

    async def take(self) -> Delivery | None:
        """Wait for a message and take it; None once `close` was called. Cancelling takes none."""
        while await self.wait():
            delivery = self.take_now()
            if delivery is not None:
                return delivery
        return None

    async def wait(self) -> bool:
        """Wait until there are messages, some of which may be wanted no more.

        Returns:
            False once `close` was called.
        """
        while not self._is_closed:
            if self._deliveries:
                return True
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker.cancelled():
                    if taker in self._takers:  # passed over meanwhile, by who woke another
                        self._takers.remove(taker)  # or they gather, where no message comes
                else:
                    self._wake_one()  # it was woken for a message that another can take
                raise
        return False

    def take_now(self) -> Delivery | None:
        """Take the next message that is wanted, if there is one. For any thread."""
        while True:
            try:
                delivery = self._deliveries.popleft()
            except IndexError:  # asking first would not help: another thread may be faster
                return None
            if delivery.process_queue.holds(delivery.message):
                return delivery

    def take_more(self, process_queue: ProcessQueue, limit: int) -> list[Delivery]:
        """Take those at the front that are of the same queue, at most `limit`; do not wait."""
        taken: list[Delivery] = []
        waiting = self._deliveries
        while len(taken) < limit and waiting and waiting[0].process_queue is process_queue:
            delivery = waiting.popleft()
            if delivery.is_wanted:
                taken.append(delivery)
        return taken

    async def drain(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        """Give out no more messages of the queue, and let those who have some end with them.

        Returns:
            Whether nobody has one any more; False if somebody still does after `timeout_s`.
        """
        idle = asyncio.Event()
        if not process_queue.drain(idle.set):
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await idle.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Give out no more messages; those who wait get None."""
        self._is_closed = True
        self._deliveries.clear()
        while self._takers:
            self._wake_one()

    def _wake(self) -> None:
        if not self._takers:
            return
        self._wake_one()
        if self._takers and not self._is_waking:
            self._is_waking = True
            loop = asyncio.get_running_loop()
            if self.patience_s:
                loop.call_later(self.patience_s, self._wake_others)
            else:
                loop.call_soon(self._wake_others)

    def _wake_others(self) -> None:
        """Wake as many of those who wait as there are messages."""
        self._is_waking = False
        for _ in range(min(len(self._deliveries), len(self._takers))):
            self._wake_one()

    def _wake_one(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return
