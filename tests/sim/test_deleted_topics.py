"""Delayed and half messages of a topic that is deleted, and of one that is created again.

They are delivered to the topic of this name if it exists when they are due or committed. Messages
that are due while it does not exist are dropped: they do not appear in a topic created later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kourou.client.consuming.acknowledging.redelivery import RetryLater
from kourou.client.sending.transaction import TransactionState
from kourou.model.message import Message, MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

WAIT_S = 600


async def send(w: Recording, message: Message) -> None:
    async with w.cluster.producer() as producer:
        await producer.send(message)


async def delayed(w: Recording) -> None:
    await send(w, Message(TOPIC, b"x", delay_level=14))


async def scheduled(w: Recording) -> None:
    await send(w, Message(TOPIC, b"x", delay_ms=WAIT_S * 1000))


WAITS: dict[str, Callable[[Recording], Awaitable[None]]] = {
    "delayed": delayed,
    "scheduled": scheduled,
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("is_killed", [False, True], ids=["running", "killed"])
def test_a_message_due_without_its_topic_is_not_delivered_later(
    wait: str, *, is_killed: bool
) -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:
            await WAITS[wait](w)
            await admin.delete_topic(TOPIC)
            await asyncio.sleep(60)
            if is_killed:
                await w.cluster.kill_broker()
                await w.cluster.restart_broker()
            await asyncio.sleep(WAIT_S)
            await admin.create_topic(TOPIC, queues=1)
            async with w.consumer():
                await asyncio.sleep(WAIT_S)
            assert w.received == []

    run_virtual(main())


@pytest.mark.parametrize("wait", WAITS)
def test_a_message_due_after_its_topic_was_created_again_is_delivered(wait: str) -> None:
    async def main() -> None:
        async with recording(queues=4) as w, w.cluster.admin() as admin:
            await WAITS[wait](w)
            await admin.delete_topic(TOPIC)
            await asyncio.sleep(60)
            await admin.create_topic(TOPIC, queues=1)
            async with w.consumer():
                await w.until_received(b"x", timeout_s=2 * WAIT_S)
                await asyncio.sleep(WAIT_S)
            assert w.received == [b"x"]

    run_virtual(main())


def test_a_transaction_of_a_deleted_topic_commits_after_the_topic_is_created_again() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:

            def check(_: MessageExt) -> TransactionState:
                return TransactionState.COMMIT

            async with w.cluster.transaction_producer(check) as producer:
                transaction = await producer.begin_transaction(Message(TOPIC, b"x"))
                await admin.delete_topic(TOPIC)
                await producer.end_transaction(transaction, TransactionState.COMMIT)
                await asyncio.sleep(120)
                await admin.create_topic(TOPIC, queues=1)
                async with w.consumer():
                    await w.until_received(b"x", timeout_s=WAIT_S)
                    assert w.received == [b"x"]

    run_virtual(main())


def test_a_retried_message_is_redelivered_after_its_topic_was_deleted() -> None:
    async def main() -> None:
        def later(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                raise RetryLater(delay_ms=60_000)

        async with recording(queues=1) as w, w.cluster.admin() as admin:
            await w.send(b"x")
            async with w.consumer(later):
                await w.until_received(b"x")
                await admin.delete_topic(TOPIC)
                await w.until_received(b"x", b"x", timeout_s=WAIT_S)
                assert w.received == [b"x", b"x"]

    run_virtual(main())
