"""Settles the messages of a push consumer: pulled ones by offsets, popped ones one by one.

    outcome of the listener   a popped message is
    returned                  acknowledged, in a batch with others that are done
    raised                    invisible for the delay that `redelivery` says, then delivered again
    raised for the last time  stored in `%DLQ%group`, then acknowledged
    not called                given back: delivered again at once, to any member, and not counted

While it is held, a message is renewed before its invisible time is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements
from kourou.client.consuming.acknowledging.redelivery import (
    DEFAULT,
    Redelivery,
    invisible_ms_of,
)
from kourou.client.consuming.consumer_config import INVISIBLE_RANGE_MS, PushConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.popping.pending_acks import PendingAcks
from kourou.client.consuming.popping.popped_messages import PoppedMessages
from kourou.client.consuming.popping.receipts import AT_ONCE_MS, Receipts
from kourou.client.consuming.popping.renewals import RENEWALS_MAX, Renewals
from kourou.client.consuming.pulling.delivery import Delivery
from kourou.client.instance import ClientInstance
from kourou.client.pop_result import PoppedMessage
from kourou.client.retrying import TIMEOUT_MS_MAX
from kourou.errors import KourouError

log = logging.getLogger(__name__)

POP_MAX_RECONSUME_TIMES: Final = 16
"""RocketMQ's default limit of redeliveries; brokers apply none of their own to popped messages."""

RENEWED_AFTER: Final = 0.25
"""Share of the invisible time after which a message that is still held is renewed from then on."""


def pop_limit(config: PushConsumerConfig, *, is_ordered: bool) -> int | None:
    """Return the redeliveries after which a popped message is a dead letter; None: no limit."""
    if config.max_reconsume_times is None and not is_ordered:
        return POP_MAX_RECONSUME_TIMES
    return config.max_reconsume_times


class PushAcknowledgements(Acknowledgements):
    """Settles pulled messages as its base does, and popped ones at their brokers.

    Attributes:
        receipts: settles popped messages.
        acks: the acknowledgements of popped messages that are pending.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
        offsets: Offsets,
    ) -> None:
        super().__init__(instance, group, config, offsets)
        self.receipts = Receipts(instance, group, while_closing=True)
        self._renewals = Renewals(self.receipts.change)
        self.acks = PendingAcks(instance, self.receipts, self._renewals)
        self._leaving: set[asyncio.Task[None]] = set()

    async def redeliver(self, delivery: Delivery, redelivery: Redelivery = DEFAULT) -> bool:
        """Have a message redelivered, or stored as a dead letter; return whether that succeeded.

        A popped message whose broker does not answer is delivered again when its invisible time is
        over. The result is False then only if its listener asked for another time.
        """
        held = delivery.process_queue
        if not isinstance(held, PoppedMessages):
            return await super().redeliver(delivery, redelivery)
        message = delivery.message
        if not isinstance(message, PoppedMessage) or not held.holds(message):
            return True
        try:
            await self._renewals.end(message)
            await self._redeliver(message, redelivery)
        except KourouError as error:
            log.warning("message.not_given_back msg_id=%s reason=%s", message.msg_id, error)
            if redelivery.is_requested and message.visible_at_s > _now_s():
                return False
        held.take((message,))
        return True

    async def _redeliver(self, message: PoppedMessage, redelivery: Redelivery) -> None:
        limit = pop_limit(self._config, is_ordered=False)
        is_spent = limit is not None and message.reconsume_times >= limit
        if redelivery.level < 0 or is_spent:
            await self.receipts.dead_letter(message, redelivery.reason)
        else:
            delay_ms = invisible_ms_of(redelivery, message.reconsume_times)
            await self.receipts.change(message, delay_ms)

    def renew_held(self, held: PoppedMessages) -> None:
        """Renew the messages that are held for long; to be called several times in that time.

        A message that is visible again, because its broker did not answer, is dropped unless its
        listener runs.
        """
        now_s = _now_s()
        expired = [one for one in held.waiting if one.visible_at_s <= now_s]
        if expired:
            log.warning("message.expired queue=%s count=%d", held.queue, len(expired))
            held.take(expired)
        for message in held.messages:
            invisible_ms = max(message.checkpoint.invisible_ms, INVISIBLE_RANGE_MS[0])
            left_ms = (message.visible_at_s - now_s) * 1000
            is_late = 0 < left_ms < invisible_ms * (1 - RENEWED_AFTER)
            if is_late and len(self._renewals) < RENEWALS_MAX:
                self._renewals.start(self._instance.tasks, message, invisible_ms, TIMEOUT_MS_MAX)

    def give_back(self, messages: Iterable[PoppedMessage], *, is_counted: bool = False) -> None:
        """Have messages delivered again at once, in the background; failures are logged."""
        for message in messages:

            async def change(message: PoppedMessage = message) -> None:
                await self._renewals.end(message)
                await self.receipts.change(message, AT_ONCE_MS, is_counted=is_counted)

            task = self._instance.tasks.start(change, f"give back {message.msg_id}")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for acknowledgements and messages that are given back."""
        leaving = asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.gather(self.acks.flush(timeout_s), asyncio.wait({leaving}, timeout=timeout_s))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
