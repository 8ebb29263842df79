"""After kills of a broker with timers, acknowledged messages are delivered once, never early."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.testing.process import Serving
from tests.crash.conftest import assert_in_order

pytestmark = pytest.mark.slow

CONFIG_TEXT = "recallMessageEnable=true\n"
TASKS = 12
KILLS = 3
DELAYS_MS = (0, 150, 400, 900, 1_500, 2_600)
RECALLED_MS = 3_500
"""The delay of recalled messages, long enough to recall them before they are due."""


@dataclass
class Sent:
    """The results of the sends.

    Attributes:
        due_ms: the due times of all acknowledged messages, by body.
        doubtful: bodies whose send or recall has an unknown result.
        recalled: bodies whose recall was acknowledged.
    """

    due_ms: dict[bytes, int] = field(default_factory=dict)
    doubtful: set[bytes] = field(default_factory=set)
    recalled: set[bytes] = field(default_factory=set)


def now_ms() -> int:
    return int(time.time() * 1000)  # noqa: TID251 - a real broker has real time


async def send_until_killed(serving: Serving, life: int, sent: Sent) -> None:
    """Send messages with short delays, recall some, and kill the broker at a random moment."""
    dice = random.Random()
    async with Producer("later", serving.namesrv) as producer:

        async def send(task: int) -> None:
            for number in range(10_000):
                body = b"%d-%d-%d" % (life, task, number)
                takes_back = number % 5 == 4
                due_ms = now_ms() + (RECALLED_MS if takes_back else dice.choice(DELAYS_MS))
                sent.doubtful.add(body)
                try:
                    message = Message("Later", body, deliver_at_ms=due_ms)
                    receipt = await producer.send(message, timeout_ms=20_000)
                    sent.due_ms[body] = due_ms
                    if takes_back and receipt.recall_handle:
                        await producer.recall("Later", receipt.recall_handle)
                        sent.recalled.add(body)
                except KourouError:
                    return
                sent.doubtful.discard(body)
                await asyncio.sleep(0.01)

        sending = [asyncio.create_task(send(task)) for task in range(TASKS)]
        await asyncio.sleep(dice.uniform(0.6, 1.6))
        serving.process.send_signal(signal.SIGKILL)
        await asyncio.wait(sending, timeout=1)
        for task in sending:
            task.cancel()


async def consume_all(serving: Serving, wanted: set[bytes]) -> list[MessageExt]:
    """Consume until all wanted messages have arrived and none follows; return all."""
    seen: list[MessageExt] = []
    config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with PullConsumer("judges", serving.namesrv, config=config) as consumer:
        consumer.subscribe("Later")
        missing, quiet = set(wanted), 0
        async with asyncio.timeout(60):
            while missing or quiet < 3:
                found = await consumer.poll(timeout_ms=500)
                seen += found
                missing -= {message.body for message in found}
                quiet = 0 if found else quiet + 1
    return seen


def test_scheduled_messages_are_delivered_once_and_never_early_across_kills(tmp_path: Path) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(CONFIG_TEXT)
    sent = Sent()
    for life in range(KILLS):
        with Serving.start(store, "--config", str(conf), "--no-console") as serving:
            asyncio.run(send_until_killed(serving, life, sent))
    assert len(sent.due_ms) > 40
    wanted = sent.due_ms.keys() - sent.recalled - sent.doubtful
    with Serving.start(store, "--config", str(conf), "--no-console") as serving:
        seen = asyncio.run(consume_all(serving, wanted))
        assert serving.stop().code == 0
    counts = Counter(message.body for message in seen)
    assert not wanted - counts.keys(), "acknowledged, but not delivered"
    assert [body for body, count in counts.items() if count > 1] == []
    assert not sent.recalled & counts.keys(), "recalled, but delivered"
    early_ms = {
        one.body: (due_ms - one.store_at_ms, due_ms - one.born_at_ms)
        for one in seen
        if one.store_at_ms < (due_ms := sent.due_ms.get(one.body, 0))
    }
    assert early_ms == {}, "time before it was due, and its delay"
    assert_in_order(store)
