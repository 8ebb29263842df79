"""Pulls of a queue whose broker is replaced."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client.config import ProducerConfig
from kourou.model.message import Message, MessageExt
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual


@pytest.mark.parametrize("port", [10_911, 20_911])
@pytest.mark.parametrize("away_s", [0.3, 0.7, 1.1])
def test_messages_of_a_replaced_broker_arrive_soon_after_it_serves(
    away_s: float, port: int
) -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            received = asyncio.Event()
            producer = cluster.producer(config=ProducerConfig(send_timeout_ms=500))
            consumer = cluster.push_consumer("G")

            async def listen(message: MessageExt) -> None:
                if message.body == b"after":
                    received.set()

            consumer.subscribe("T")
            consumer.listen(listen)
            async with producer:
                await producer.send(Message("T", b"before"))
                async with consumer:
                    await asyncio.sleep(5)
                    await cluster.kill_broker()
                    await asyncio.sleep(away_s)
                    cluster.move_broker(port)
                    await cluster.restart_broker()
                    await producer.send(Message("T", b"after"))
                    async with asyncio.timeout(0.6):
                        await received.wait()

    run_virtual(main())
