"""Acknowledges deliveries or sends their messages back for redelivery.

Source: ConsumeMessageConcurrentlyService.processConsumeResult, ProcessQueue.cleanExpiredMsg.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kourou.client import calls_consume
from kourou.client.consuming.acknowledging.redelivery import (
    DEFAULT,
    Redelivery,
    level_not_shorter,
    reason_of,
)
from kourou.client.consuming.acknowledging.retry_send import send_to_retry_topic
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.pulling.delivery import Delivery, DeliverySource, ReadyMessages
from kourou.client.instance import ClientInstance
from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import INNER_BATCH
from kourou.protocol.record.decode import UndecodableMessage

log = logging.getLogger(__name__)

_OVERDUE_MAX: Final = 16
"""Overdue messages of one queue sent back in one check, as in Java; the rest follow in the next."""

_OVERDUE: Final = Redelivery(level=3, reason="the listener took longer than consume_timeout_ms")
"""Level 3, 10 seconds: the delay of a message whose listener takes too long."""


class Acknowledgements:
    """Acknowledges or sends back messages of a clustering group.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: its timeouts.
        offsets: receives the offsets that become committable.

    Attributes:
        group: as given.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
        offsets: Offsets,
    ) -> None:
        self._instance = instance
        self.group = group
        self._config = config
        self._offsets = offsets

    def acknowledge(self, delivery: Delivery) -> None:
        """Mark the message as done. Does nothing once the queue belongs to another member."""
        process_queue, message = delivery.process_queue, delivery.message
        offset = process_queue.remove(message)
        if offset is not None:
            self._offsets.update(process_queue.queue, offset)

    def acknowledge_all(self, deliveries: Iterable[Delivery]) -> None:
        """Mark the messages as done, as `acknowledge` does for each."""
        messages: defaultdict[DeliverySource, list[MessageExt]] = defaultdict(list)
        for delivery in deliveries:
            messages[delivery.process_queue].append(delivery.message)
        for process_queue, ended in messages.items():
            offset = process_queue.remove_all(ended)
            if offset is not None:
                self._offsets.update(process_queue.queue, offset)

    async def redeliver(self, delivery: Delivery, redelivery: Redelivery = DEFAULT) -> bool:
        """Have a broker redeliver the message later; return whether one accepted it.

        The message is sent back to its broker or, if that fails, a copy is sent to the group's
        retry topic. A delay that is not a delay level needs a copy, too. A broker without scheduled
        messages refuses such a copy; the message is then sent back at the shortest level that is
        not shorter. If the message is no longer held, because it is done or its queue was dropped,
        nothing is sent and the result is True.
        """
        if not delivery.is_held:
            return True
        message = delivery.message
        if redelivery.delay_ms is not None:
            if await self._send_copy(message, redelivery):
                self.acknowledge(delivery)
                return True
            redelivery = replace(
                redelivery, level=level_not_shorter(redelivery.delay_ms), delay_ms=None
            )
        if not (
            await self._send_back(delivery, redelivery)
            or await self._send_copy(message, redelivery)
        ):
            return False
        self.acknowledge(delivery)
        return True

    async def _send_back(self, delivery: Delivery, redelivery: Redelivery) -> bool:
        """Send the message back to its broker; return whether the broker accepted it."""
        message = delivery.message
        instance, config = self._instance, self._config
        timeout_s = config.send_back_timeout_ms / 1000
        queue = delivery.process_queue.queue
        try:
            address = await instance.routes.address(queue.topic, queue.broker_name, timeout_s)
            await calls_consume.send_back(
                instance.pool,
                address,
                self.group,
                message,
                delay_level=redelivery.level,
                max_reconsume_times=config.max_reconsume_times,
                timeout_s=timeout_s,
                reason=redelivery.reason,
            )
        except KourouError as error:
            instance.routes.on_failure(queue.topic, error)
            log.warning("message.not_given_back msg_id=%s reason=%s", message.msg_id, error)
            return False
        return True

    async def _send_copy(self, message: MessageExt, redelivery: Redelivery) -> bool:
        """Send the message to the retry topic; return whether a broker stored it."""
        config = self._config
        try:
            await send_to_retry_topic(
                self._instance,
                self.group,
                message,
                max_reconsume_times=config.max_reconsume_times,
                timeout_s=config.send_back_timeout_ms / 1000,
                redelivery=redelivery,
            )
        except KourouError as error:
            # A broker without scheduled messages is no fault, and a delay level is tried next.
            level = logging.WARNING if redelivery.delay_ms is None else logging.DEBUG
            log.log(level, "message.not_sent_again msg_id=%s reason=%s", message.msg_id, error)
            return False
        return True

    async def store_dead_letter(self, queue: MessageQueue, undecodable: UndecodableMessage) -> bool:
        """Store an unreadable message as a dead letter; return whether a broker accepted it."""
        return await store_dead_letter(
            self._instance,
            self.group,
            queue,
            undecodable,
            timeout_s=self._config.send_back_timeout_ms / 1000,
        )


class BroadcastAcknowledgements(Acknowledgements):
    """Acknowledges messages of a broadcasting group, failed ones too: it has no redelivery."""

    async def redeliver(self, delivery: Delivery, redelivery: Redelivery = DEFAULT) -> bool:
        """Drop the message: a broker cannot redeliver it to a single member."""
        del redelivery
        if delivery.is_held:
            log.warning("message.dropped msg_id=%s reason=broadcasting", delivery.message.msg_id)
            self.acknowledge(delivery)
        return True

    async def store_dead_letter(self, queue: MessageQueue, undecodable: UndecodableMessage) -> bool:
        """Drop the message: a broadcasting group has no dead letters."""
        message, error = undecodable
        log.error("message.unreadable queue=%s msg_id=%s reason=%s", queue, message.msg_id, error)
        return True


async def store_dead_letter(
    instance: ClientInstance,
    group: str,
    queue: MessageQueue,
    undecodable: UndecodableMessage,
    *,
    timeout_s: float,
) -> bool:
    """Store an unreadable message as a dead letter; return whether a broker accepted it.

    The message is sent back by its record's position, so that the dead letter has the stored bytes.
    A batch stored as one record is sent as a copy without the batch flag instead: brokers store
    such batches only in topics of that kind.
    """
    message, error = undecodable
    try:
        if message.sys_flag & INNER_BATCH:
            redelivery = Redelivery(level=-1, reason=reason_of(error))
            await send_to_retry_topic(
                instance,
                group,
                message,
                max_reconsume_times=None,
                timeout_s=timeout_s,
                redelivery=redelivery,
            )
        else:
            address = await instance.routes.address(queue.topic, queue.broker_name, timeout_s)
            await calls_consume.send_back(
                instance.pool,
                address,
                group,
                message,
                delay_level=-1,
                max_reconsume_times=None,
                timeout_s=timeout_s,
                reason=reason_of(error),
            )
    except KourouError as refused:
        log.warning("message.not_given_back msg_id=%s reason=%s", message.msg_id, refused)
        return False
    log.error("message.unreadable queue=%s msg_id=%s reason=%s", queue, message.msg_id, error)
    return True


async def redeliver_overdue(
    process_queues: Iterable[DeliverySource],
    acknowledgements: Acknowledgements,
) -> None:
    """Send back the messages whose listener calls were already running at the previous check.

    To be called every `consume_timeout_ms`. The later result of such a listener call is ignored.
    """
    for process_queue in list(process_queues):
        for message in process_queue.overdue(_OVERDUE_MAX):
            log.warning("message.overdue topic=%s msg_id=%s", message.topic, message.msg_id)
            delivery = Delivery(process_queue, message)
            await acknowledgements.redeliver(delivery, _OVERDUE)


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
