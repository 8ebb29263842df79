"""A broker that is killed beside delayed messages, topics that come and go, and clock changes.

No delivery is repeated in the log, in whatever life of its topic, and no message is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Final, cast

import pytest

from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TopicConfig
from kourou.store.log.property_search import records_with_property
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.delays.delay_rig import run

GONE: Final = "Gone"
LEVELS: Final = "1s 2s 8s"
LIVES: Final = 5
STEPS_MS: Final = (3_600_000, -3_600_000, 2_000, -2_000)


class Lives:
    """Several brokers in succession on one disk."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.disk = SimDisk(seed)
        self.sent: Counter[str] = Counter()
        self.later_ms = 0

    def live(self) -> None:
        """Run a broker for some seconds, and kill it."""

        async def main() -> None:
            config = small_config(message_delay_level=LEVELS)
            broker = SimulatedBroker(self.disk, config=config, later_ms=self.later_ms)
            await broker.start_deliveries()
            work = [self._send(broker), self._delete_and_create(broker), self._step(broker)]
            tasks = [asyncio.create_task(one) for one in work]
            await asyncio.sleep(self.dice.uniform(1, 20))
            for task in tasks:
                task.cancel()
            broker.abandon()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended
            self.later_ms = broker.clock.now_ms() - EPOCH_MS + self.dice.choice((100, 3_000))

        run_virtual(main())

    async def _send(self, broker: SimulatedBroker) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0, 0.6))
            topic = self.dice.choice(("T", GONE))
            if broker.topics.get(topic) is not None:
                key = f"{topic}-{self.sent.total()}"
                draft = broker.draft(
                    topic=topic,
                    delay_level=self.dice.randint(1, 3),
                    properties={names.UNIQ_KEY: key},
                )
                self.sent[key] += 1
                await broker.store_messages([draft])

    async def _delete_and_create(self, broker: SimulatedBroker) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0, 4))
            broker.topics.put(TopicConfig(GONE))
            await asyncio.sleep(self.dice.choice((0, 0, 2)))
            await broker.topics.persist()
            await broker.store_messages([broker.draft(b"plain", topic=GONE)])
            await asyncio.sleep(self.dice.uniform(0, 4))
            deletion = broker.commit.begin_deletion(GONE)
            assert deletion is not None
            await asyncio.sleep(self.dice.uniform(0, 2))
            deletion.note()
            await asyncio.sleep(self.dice.uniform(0, 2))
            deletion.forget()
            deletion.remove_files()
            deletion.allow()
            broker.topics.delete(GONE)
            await broker.topics.persist()

    async def _step(self, broker: SimulatedBroker) -> None:
        clock = cast(LoopClock, broker.clock)
        while True:
            await asyncio.sleep(self.dice.uniform(0, 5))
            await broker.delay.persist()
            step_ms = self.dice.choice(STEPS_MS)
            clock.step(step_ms)
            await asyncio.sleep(self.dice.uniform(0, 3))
            clock.step(-step_ms)


@pytest.mark.parametrize("seed", range(8))
def test_kills_beside_topics_that_come_and_go_repeat_no_delivery(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(LIVES):
        lives.live()

    async def wait(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig(GONE))
        await asyncio.sleep(60)

    run(wait, lives.disk, later_ms=lives.later_ms, message_delay_level=LEVELS)
    segment_bytes = small_config().store.commitlog_segment_bytes
    delivered: Counter[str] = Counter()
    for header, text in records_with_property(lives.disk, segment_bytes, 0, names.REAL_TOPIC):
        properties = decode_properties(text)
        if header.topic == properties[names.REAL_TOPIC]:
            delivered[properties[names.UNIQ_KEY]] += 1
    assert {key: count for key, count in delivered.items() if count > 1} == {}
    assert {key for key in lives.sent if key.startswith("T")} <= delivered.keys()
    assert any(key.startswith(GONE) for key in delivered)
