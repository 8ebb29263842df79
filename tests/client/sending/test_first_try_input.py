"""Unusual input of the fast path is sent or refused, and counted once as in flight."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from kourou.client.sending.producer import Producer
from kourou.errors import InvalidMessageError, InvalidTopicError, UsageError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.testing.inspection import in_flight_of
from tests.client.sending.test_first_try import Broker, NoEffectHook, against, answered, stored


def test_invalid_message_is_refused_and_not_counted_in_flight() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        invalid: list[tuple[Message, type[Exception]]] = [
            (Message("T", b""), InvalidMessageError),
            (Message("a b", b"x"), InvalidTopicError),
            (Message("T", b"x", properties={"k": "v" * 40_000}), InvalidMessageError),
            (Message("T", b"x", properties={"k": "\ud800"}), InvalidMessageError),
        ]
        for message, error in invalid:
            with pytest.raises(error):
                await producer.submit(message)
            with pytest.raises(error):
                await producer.send(message)
        assert broker.requests == []
        assert producer.stats().in_flight == 0
        await (await producer.submit(Message("T", b"x")))

    against([stored], body, in_flight_messages_max=1)


@pytest.mark.parametrize("timeout_ms", [float("inf"), float("nan"), 1 << 31, 10**400])
@pytest.mark.parametrize("hooks", [(), [NoEffectHook()]], ids=["fast path", "general path"])
def test_invalid_timeout_is_refused_and_not_counted_in_flight(timeout_ms: Any, hooks: Any) -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        message = Message("T", b"x")
        for sending in (
            lambda: producer.send(message, timeout_ms=timeout_ms),
            lambda: producer.submit(message, timeout_ms=timeout_ms),
            lambda: producer.send_batch([message], timeout_ms=timeout_ms),
            lambda: producer.send_oneway(message, timeout_ms=timeout_ms),
        ):
            with pytest.raises(UsageError, match=r"timeout_ms is .*: at most 2147483647"):
                await sending()
        assert broker.requests == []
        stats = producer.stats()
        assert (stats.in_flight, stats.failed_total, len(in_flight_of(producer))) == (0, 0, 0)
        await (await producer.submit(message, timeout_ms=(1 << 31) - 1))

    against([stored], body, hooks=hooks, in_flight_messages_max=1)


def test_queue_id_of_type_str_takes_the_general_path() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        queue = MessageQueue("T", "b", "3")  # type: ignore[arg-type]  # as read from a file
        receipt = await (await producer.submit(Message("T", b"x"), queue=queue))
        assert receipt.queue.queue_id == 3
        assert [request.command.ext_fields["e"] for request in broker.requests] == ["3"]
        await asyncio.sleep(10)
        assert len(broker.requests) == 1, "the request is sent once"
        assert len(in_flight_of(producer)) == producer.stats().in_flight == 0

    against([stored], body)


def test_selector_without_a_queue_fails_the_send_and_releases_it() -> None:
    class Almost:
        topic = "T"

    async def body(producer: Producer, broker: Broker) -> None:
        almost: Any = Almost()
        future = await producer.submit(Message("T", b"x"), queue=lambda _, __: almost)
        with pytest.raises(AttributeError):
            await future
        assert broker.requests == []
        assert len(in_flight_of(producer)) == producer.stats().in_flight == 0

    against([stored], body)


def test_long_properties_take_the_general_path() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        await producer.send(Message("T", b"x", properties={"k": "v" * 29_900}))
        assert "v" * 29_900 in broker.requests[0].command.ext_fields["i"]

    against([stored], body)


def test_selector_is_called_once_per_try_in_the_callers_context() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")

    async def body(producer: Producer, broker: Broker) -> None:
        seen: list[str] = []

        def select(queues: Any, _: Message) -> MessageQueue:
            seen.append(tenant.get())
            queue: MessageQueue = queues[len(seen)]
            return queue

        tenant.set("mine")
        receipt = await (await producer.submit(Message("T", b"x"), queue=select))
        assert seen == ["mine", "mine"]
        assert receipt.queue.queue_id == 2

    against([answered(2), stored], body)
