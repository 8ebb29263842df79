"""Settles popped messages: acknowledges them, changes their invisible time, stores dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from kourou.client import calls_consume, calls_pop
from kourou.client.calls_pop import BrokerAcks
from kourou.client.instance import ClientInstance
from kourou.client.pop_result import PoppedMessage
from kourou.client.retrying import Deadline
from kourou.errors import KourouError, RequestNotSupportedError
from kourou.model.queue import MessageQueue
from kourou.protocol.popping.headers import BatchAck

T = TypeVar("T")
log = logging.getLogger(__name__)

AT_ONCE_MS: Final = 0
"""Invisible time of a message that is given back."""

_DEAD_LETTER_LEVEL: Final = -1


class Receipts:
    """Requests about popped messages. Each is retried after temporary failures until its timeout.

    Repeating one is safe: a broker ignores a handle that is settled.

    All calls raise TransportError if no answer arrives in time, RemoteError if the broker refuses,
    and ClosedError if the client is not open.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        while_closing: calls may also be made while the client closes.
    """

    def __init__(
        self, instance: ClientInstance, group: str, *, while_closing: bool = False
    ) -> None:
        self._instance = instance
        self._group = group
        self._while_closing = while_closing

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge one message."""
        await self._call(
            message,
            lambda address, deadline: calls_pop.ack(
                self._instance.pool,
                address,
                self._group,
                message,
                timeout_s=deadline.remaining_s(),
            ),
        )

    async def ack_all(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages with as few requests as possible, to all their brokers at once.

        Raises:
            KourouError: the first error; the messages of other requests are acknowledged.
        """
        namespace = self._instance.pool.namespace
        by_broker, single = calls_pop.acks_by_broker(namespace, self._group, messages)
        requests: list[Awaitable[None]] = [self._ack_broker(of) for of in by_broker.values()]
        if single:
            requests.append(self._ack_one_by_one(single))
        if len(requests) == 1:
            await requests[0]
            return
        for result in await asyncio.gather(*requests, return_exceptions=True):
            if result is not None:
                raise result

    async def change(
        self, message: PoppedMessage, invisible_ms: int, *, is_counted: bool = True
    ) -> None:
        """Make a message visible again in `invisible_ms`; replaces its receipt handle.

        Without `is_counted`, its delivery counts as not made; see `calls_pop.change_invisible`.
        """
        await self._call(
            message,
            lambda address, deadline: calls_pop.change_invisible(
                self._instance.pool,
                address,
                self._group,
                message,
                invisible_ms,
                is_counted=is_counted,
                timeout_s=deadline.remaining_s(),
            ),
        )

    async def dead_letter(self, message: PoppedMessage, reason: str | None) -> None:
        """Store a message in `%DLQ%group`, then acknowledge it.

        If the acknowledgement fails, the message is delivered again although it is stored.
        """
        await self._call(
            message,
            lambda address, deadline: calls_consume.send_back(
                self._instance.pool,
                address,
                self._group,
                message,
                delay_level=_DEAD_LETTER_LEVEL,
                max_reconsume_times=None,
                timeout_s=deadline.remaining_s(),
                reason=reason,
            ),
        )
        await self.ack(message)

    def ack_soon(self, messages: list[PoppedMessage]) -> None:
        """Acknowledge messages in the background. If that fails, they are delivered again."""
        self._instance.tasks.start(lambda: self.ack_all(messages), "acknowledge unmatched messages")

    def dead_letter_soon(self, message: PoppedMessage, reason: str) -> None:
        """Store a dead letter in the background. If that fails, the message is delivered again."""
        log.error("message.dead_letter msg_id=%s reason=%s", message.msg_id, reason)
        self._instance.tasks.start(
            lambda: self.dead_letter(message, reason), f"dead letter {message.msg_id}"
        )

    async def _ack_broker(self, of_broker: BrokerAcks) -> None:
        messages, acks = of_broker
        try:
            for part in calls_pop.requests_of(acks):
                await self._ack_batch(messages[0], part)
        except RequestNotSupportedError:  # brokers before 5.1
            await self._ack_one_by_one(messages)

    async def _ack_batch(self, first: PoppedMessage, acks: list[BatchAck]) -> None:
        await self._call(
            first,
            lambda address, deadline: calls_pop.ack_batch(
                self._instance.pool,
                address,
                first.checkpoint.broker_name,
                acks,
                timeout_s=deadline.remaining_s(),
            ),
        )

    async def _ack_one_by_one(self, messages: list[PoppedMessage]) -> None:
        failure: KourouError | None = None
        for message in messages:
            try:
                await self.ack(message)
            except KourouError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _call(
        self, message: PoppedMessage, call: Callable[[str, Deadline], Awaitable[T]]
    ) -> T:
        checkpoint = message.checkpoint
        queue = MessageQueue(message.topic, checkpoint.broker_name, checkpoint.queue_id)
        timeout_ms = self._instance.config.request_timeout_ms
        return await self._instance.call_broker(
            queue, timeout_ms, call, while_closing=self._while_closing
        )
