"""Sends messages back for redelivery; redelivers from memory those that no broker accepts."""

from __future__ import annotations

import asyncio

from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements
from kourou.client.consuming.acknowledging.redelivery import Redelivery
from kourou.client.consuming.pulling.delivery import Delivery, ReadyMessages
from kourou.client.instance import ClientInstance


class Redeliverer:
    """Has failed messages redelivered.

    Args:
        instance: owns the tasks that wait; they end with it.
        acknowledgements: sends messages back to brokers.
        ready: receives the messages that no broker accepted.
        delay_ms: time in ms before such a message is delivered again.
    """

    def __init__(
        self,
        instance: ClientInstance,
        acknowledgements: Acknowledgements,
        ready: ReadyMessages,
        delay_ms: int,
    ) -> None:
        self._instance = instance
        self._acknowledgements = acknowledgements
        self._ready = ready
        self._delay_s = delay_ms / 1000

    async def redeliver(self, delivery: Delivery, redelivery: Redelivery) -> None:
        """Send the message back or, if no broker accepts it, redeliver it from memory later."""
        if not await self._acknowledgements.redeliver(delivery, redelivery):
            self._deliver_later(delivery, redelivery)

    def _deliver_later(self, delivery: Delivery, redelivery: Redelivery) -> None:
        """Redeliver the message from memory after the delay; it stays held until then.

        If its listener asked for a delay or a dead letter, the message is not redelivered from
        memory. Sending it back is retried until a broker accepts it.
        """
        process_queue, message = delivery.process_queue, delivery.message
        process_queue.postpone(message)

        async def deliver() -> None:
            await asyncio.sleep(self._delay_s)
            self._ready.put(process_queue, (message,))

        async def give_back() -> None:
            while True:
                await asyncio.sleep(self._delay_s)
                if await self._acknowledgements.redeliver(delivery, redelivery):
                    return

        if redelivery.is_requested:
            self._instance.tasks.start(give_back, "give back again")
        else:
            message.reconsume_times += 1
            self._instance.tasks.start(deliver, "local retry")
