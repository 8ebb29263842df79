"""Messages with a delay level, with the levels configured at the broker."""

from __future__ import annotations

import asyncio

import pytest

from kourou.model.message import Message
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording


@pytest.mark.parametrize(("level", "delay_s"), [(1, 2), (2, 60), (3, 60), (18, 60)])
def test_delay_level_has_the_brokers_delay_and_is_capped(level: int, delay_s: int) -> None:
    async def main() -> None:
        async with (
            recording(message_delay_level="2s 1m") as w,
            w.consumer(),
            w.cluster.producer() as producer,
        ):
            await w.send(b"at once")
            await w.until_received(b"at once")
            loop = asyncio.get_running_loop()
            await producer.send(Message(TOPIC, b"later", delay_level=level))
            sent_at_s = loop.time()
            await w.until_received(b"later", timeout_s=120)
            assert delay_s - 0.05 < loop.time() - sent_at_s < delay_s + 0.2

    run_virtual(main())


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 0), (0, 1_500)])
def test_delayed_compressed_message_arrives_unchanged(level: int, delay_ms: int) -> None:
    body = b"0123456789" * 1_000
    message = Message(
        TOPIC, body, tags="t", keys=["k"], flag=7, delay_level=level, delay_ms=delay_ms
    )

    async def main() -> None:
        async with recording() as w, w.consumer(), w.cluster.producer() as producer:
            receipt = await producer.send(message)
            await w.until_received(body)
            (received,) = w.deliveries
            assert (received.msg_id, received.tags, received.keys) == (receipt.msg_id, "t", ["k"])
            assert (received.flag, received.reconsume_times) == (7, 0)
            assert received.store_size < 2_000

    run_virtual(main())
