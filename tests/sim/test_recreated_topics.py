"""A topic that is repeatedly deleted and created again under running and paused consumers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

SEEDS = range(12)
ROUNDS = 5


async def _disturb(consumers: list[PushConsumer], dice: random.Random) -> None:
    """Pause and resume members until cancelled."""
    while True:
        await asyncio.sleep(dice.uniform(0, 20))
        consumer = dice.choice(consumers)
        if dice.random() < 0.5:
            consumer.pause(*dice.choice([(), consumer.queues]))
        else:
            consumer.resume()


async def _fill(w: Recording, life: int, dice: random.Random) -> list[bytes]:
    """Send a random number of messages; return their bodies."""
    bodies = [b"%d/%d" % (life, number) for number in range(dice.choice([1, 3, 20, 60]))]
    await w.send(*bodies)
    return bodies


@pytest.mark.parametrize("seed", SEEDS)
def test_all_messages_of_a_topic_created_again_are_consumed(seed: int) -> None:
    async def main() -> None:
        dice = random.Random(seed)
        work_s = dice.choice([0.0, 0.0, 1.0])

        async def work(_: MessageExt) -> None:
            await asyncio.sleep(work_s)

        async with recording(queues=2, seed=seed) as w, w.cluster.admin() as admin:
            options: dict[str, Any] = {
                "pull_threshold_count": dice.choice([1, 10, 1_000]),
                "consume_threads": 2,
            }
            consumers = [
                w.consumer(work, instance_name=f"member-{number}", **options) for number in range(2)
            ]
            sent = await _fill(w, 0, dice)
            async with consumers[0], consumers[1]:
                disturbing = asyncio.create_task(_disturb(consumers, dice))
                for life in range(1, ROUNDS + 1):
                    await asyncio.sleep(dice.choice([0, 1, 10, 40]))
                    await admin.delete_topic(TOPIC)
                    await asyncio.sleep(dice.choice([0, 0, 0.01, 5, 70]))
                    await admin.create_topic(TOPIC, queues=2)
                    sent = await _fill(w, life, dice)
                await asyncio.sleep(dice.choice([0, 10, 60]))
                disturbing.cancel()
                for consumer in consumers:
                    consumer.resume()
                await w.until_received(*sent, timeout_s=200)
                await asyncio.sleep(20)
            assert await w.committed() == len(sent)

    run_virtual(main())
