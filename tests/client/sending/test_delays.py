"""Messages with a delay level, by the levels that their broker is configured with."""

from __future__ import annotations

import asyncio

import pytest

from kourou.model.message import Message
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording


@pytest.mark.parametrize(("level", "delay_s"), [(1, 2), (2, 60), (3, 60), (18, 60)])
def test_a_level_waits_as_its_broker_says_and_the_highest_stands_for_those_above(
    level: int, delay_s: int
) -> None:
    async def main() -> None:
        async with (
            recording(message_delay_level="2s 1m") as w,
            w.consumer(),
            w.cluster.producer() as producer,
        ):
            await w.send(b"at once")
            await w.until_got(b"at once")
            loop = asyncio.get_running_loop()
            await producer.send(Message(TOPIC, b"later", delay_level=level))
            sent_at_s = loop.time()
            await w.until_got(b"later", timeout_s=120)
            assert delay_s - 0.05 < loop.time() - sent_at_s < delay_s + 0.2

    run_virtual(main())
