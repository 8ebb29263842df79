"""Public names of `kourou`: each loads, is typed, and is imported lazily."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import assert_type

import pytest

import kourou
from kourou import (
    Durability,
    Message,
    MessageExt,
    MessageQueue,
    PoppedMessage,
    Producer,
    ProducerHealth,
    ProducerStats,
    PullConsumer,
    PullResult,
    PushConsumer,
    ReceiptHandle,
    SendAttempt,
    SendHook,
    SendOutcome,
    SendReceipt,
    SimpleConsumer,
    SimpleConsumerHealth,
)

CHEAP = """
import sys
import kourou
heavy = {"asyncio", "msgspec", "typer", "rich", "kourou.client", "kourou.broker"}
print(sorted(heavy & set(sys.modules)))
"""


def test_every_public_name_loads() -> None:
    assert dir(kourou) == sorted(kourou.__all__)
    for name in kourou.__all__:
        assert getattr(kourou, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        getattr(kourou, "Absent")  # noqa: B009  # mypy knows that it is absent


def test_importing_the_package_loads_no_other_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHEAP], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"


def last_queue(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
    """Choose a queue, as a user's function does."""
    return queues[-1]


class Audit:
    """A user's hook."""

    def before_send(self, attempt: SendAttempt) -> None:
        """Do nothing."""

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Do nothing."""


HOOK: SendHook = Audit()


async def use(producer: Producer, reader: PullConsumer, consumer: PushConsumer) -> None:
    """Not executed: mypy checks these types."""
    receipt = await producer.send(Message("T", b"x"))
    assert_type(receipt, SendReceipt)
    assert_type(receipt.durability, Durability)
    assert_type(await producer.submit(Message("T", b"x")), asyncio.Future[SendReceipt])
    assert_type(await producer.send_batch([Message("T", b"x")]), list[SendReceipt])
    assert_type(await producer.send(Message("T", b"x"), sharding_key="k"), SendReceipt)
    assert_type(await producer.send(Message("T", b"x"), queue=last_queue), SendReceipt)
    assert_type(producer.stats(), ProducerStats)
    assert_type(producer.health(), ProducerHealth)
    queues = await reader.fetch_subscribe_message_queues("T")
    assert_type(queues, list[MessageQueue])
    result = await reader.pull(queues[0], 0)
    assert_type(result, PullResult)
    assert_type(result.messages, list[MessageExt])
    assert_type(await reader.committed(queues[0]), int | None)
    async for message in consumer:
        assert_type(message, MessageExt)

    @consumer.listen
    def by_decorator(message: MessageExt) -> None:
        assert message.body

    async def coroutine(message: MessageExt) -> None:
        assert message.body

    consumer.listen(coroutine)


async def receive(consumer: SimpleConsumer) -> None:
    """Not executed: mypy checks these types."""
    messages = await consumer.receive(8, invisible_ms=30_000, wait_ms=0)
    assert_type(messages, list[PoppedMessage])
    async with consumer.message_scope(messages[0], renew_ms=60_000) as message:
        assert_type(message, PoppedMessage)
        assert_type(message.receipt, ReceiptHandle)
    assert_type(consumer.health(), SimpleConsumerHealth)
