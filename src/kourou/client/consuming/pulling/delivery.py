"""Pulled messages that are ready to be delivered to listeners."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue


class DeliverySource(Protocol):
    """Holds the messages that listeners and loops receive: a process queue or popped messages.

    Attributes:
        needs_lock: no message may be delivered without a valid lock of the queue.
        last_consumed_at_ms: time of the last start of a delivery, in epoch milliseconds; 0 before
            the first.
    """

    needs_lock: bool
    last_consumed_at_ms: int

    @property
    def queue(self) -> MessageQueue:
        """The queue of the messages; with id -1 those of all queues of a broker."""

    @property
    def is_dropped(self) -> bool:
        """Whether no message is delivered or settled any more."""

    def holds(self, message: MessageExt) -> bool:
        """Return whether this message object is held: neither done nor revoked."""

    def start(self, message: MessageExt, now_ms: int) -> bool:
        """Record that the delivery of `message` starts; False if it is no longer held."""

    def postpone(self, message: MessageExt) -> None:
        """Record that `message` waits for its next delivery; no listener has it any more."""

    def remove(self, message: MessageExt) -> int | None:
        """Remove `message`, which is done; return the queue offset to commit, if there is one."""

    def remove_all(self, messages: Iterable[MessageExt]) -> int | None:
        """Remove `messages`, which are done; return the queue offset to commit, if there is one."""

    def overdue(self, limit: int) -> list[MessageExt]:
        """Return messages whose delivery was already running at the previous call, by offset."""


class Delivery:
    """A message to deliver, and the process queue or popped messages that hold it."""

    __slots__ = ("message", "process_queue")

    # No dataclass: one is created for each message, and a frozen dataclass takes three times as
    # long.
    def __init__(self, process_queue: DeliverySource, message: MessageExt) -> None:
        self.process_queue = process_queue
        self.message = message

    @property
    def is_held(self) -> bool:
        """Whether the process queue still holds it: not revoked, sent back or done."""
        return self.process_queue.holds(self.message)


class Consumption(Protocol):
    """Delivers pulled messages to listeners."""

    def put(self, process_queue: DeliverySource, messages: Sequence[MessageExt]) -> None:
        """Deliver messages that were added to `process_queue`."""

    async def drain(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        """Deliver no more messages of the queue, and wait for running listener calls.

        Returns:
            Whether all calls ended within `timeout_s`.
        """


class ReadyMessages:
    """Messages of all queues that are ready for delivery, in the order of their arrival.

    Its size is bounded by the flow control of the pulls. When messages arrive, one waiting taker is
    woken immediately, and after `wake_delay_s` as many more as messages are left. Waking all takers
    at once would cost more than most messages: if consuming takes no time, the first taker has
    taken all messages before the others run.

    Attributes:
        wake_delay_s: seconds before more takers are woken; 0: in the next loop iteration.
        pop: takes the next message, still held or not; raises IndexError if there is none. May be
            called from any thread. `ProcessQueue.start` returns whether it is still held.
    """

    def __init__(self) -> None:
        self.wake_delay_s = 0.0
        self._is_waking = False
        self._deliveries: deque[Delivery] = deque()
        self.pop = self._deliveries.popleft
        self._takers: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    @property
    def taker_count(self) -> int:
        """Number of takers that wait for a message."""
        return len(self._takers)

    def put(self, process_queue: DeliverySource, messages: Iterable[MessageExt]) -> None:
        """Add messages that `process_queue` holds. Ignored when closed."""
        if self._is_closed:
            return
        self._deliveries.extend([Delivery(process_queue, message) for message in messages])
        self._wake()

    def put_first(self, delivery: Delivery) -> None:
        """Put a taken delivery back at the front. Ignored when closed."""
        if self._is_closed:
            return
        self._deliveries.appendleft(delivery)
        self._wake()

    async def take(self) -> Delivery | None:
        """Wait for a message and take it; None when closed. Cancelling takes no message."""
        while await self.wait():
            delivery = self.take_now()
            if delivery is not None:
                return delivery
        return None

    async def wait(self) -> bool:
        """Wait until there are messages, some of which may no longer be held.

        Returns:
            False when closed.
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
                    # `_wake_one` may have removed it already, when it skipped cancelled takers.
                    if taker in self._takers:
                        # Cancelled takers would accumulate while no messages arrive.
                        self._takers.remove(taker)
                else:
                    self._wake_one()  # pass the wake-up on to another taker
                raise
        return False

    def take_now(self) -> Delivery | None:
        """Take the next message that is still held, or None. May be called from any thread."""
        while True:
            try:
                delivery = self._deliveries.popleft()
            except IndexError:  # not checked first: another thread may be faster
                return None
            if delivery.process_queue.holds(delivery.message):
                return delivery

    def take_same_queue(self, process_queue: DeliverySource, limit: int) -> list[Delivery]:
        """Take at most `limit` messages of the same queue from the front, without waiting."""
        taken: list[Delivery] = []
        waiting = self._deliveries
        while len(taken) < limit and waiting and waiting[0].process_queue is process_queue:
            delivery = waiting.popleft()
            if delivery.is_held:
                taken.append(delivery)
        return taken

    async def drain(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        """Deliver no more messages of the queue, and wait for deliveries in progress.

        Returns:
            Whether all of them ended within `timeout_s`.
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
        """Deliver no more messages; `take` returns None from now on."""
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
            if self.wake_delay_s:
                loop.call_later(self.wake_delay_s, self._wake_others)
            else:
                loop.call_soon(self._wake_others)

    def _wake_others(self) -> None:
        """Wake as many takers as there are messages."""
        self._is_waking = False
        for _ in range(min(len(self._deliveries), len(self._takers))):
            self._wake_one()

    def _wake_one(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return
