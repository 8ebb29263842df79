"""Giving messages back, also when no broker takes them: such a one is delivered from memory."""

from __future__ import annotations

import asyncio

from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements
from kourou.client.consuming.acknowledging.redelivery import Redelivery
from kourou.client.consuming.pulling.delivery import Delivery, ReadyMessages
from kourou.client.instance import ClientInstance


class GivingBack:
    """Has messages delivered again that were not consumed.

    Args:
        instance: whose tasks wait, and end with it.
        acknowledgements: asks brokers.
        ready: where messages go that no broker takes.
        delay_ms: how long to wait then.
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

    async def give_back(self, delivery: Delivery, how: Redelivery) -> None:
        """Have a broker deliver the message again, or deliver it from memory after a while."""
        if not await self._acknowledgements.give_back(delivery, how):
            self._deliver_later(delivery, how)

    def _deliver_later(self, delivery: Delivery, how: Redelivery) -> None:
        """Deliver the message again from memory, after a while; till then it stays held.

        Not before the time that its listener asked for: such a message is given back when a broker
        takes it.
        """
        process_queue, message = delivery.process_queue, delivery.message
        process_queue.postpone(message)

        async def deliver() -> None:
            await asyncio.sleep(self._delay_s)
            self._ready.put(process_queue, (message,))

        async def give_back() -> None:
            while True:
                await asyncio.sleep(self._delay_s)
                if await self._acknowledgements.give_back(delivery, how):
                    return

        if how.is_asked_for:
            self._instance.tasks.start(give_back, "give back again")
        else:
            message.reconsume_times += 1
            self._instance.tasks.start(deliver, "local retry")
