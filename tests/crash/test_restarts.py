"""Clients of a real broker that is repeatedly killed or stopped under load notice only a pause."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.testing.process import Serving, run_command
from tests.held_ports import held_ports

CYCLES = int(os.environ.get("KOUROU_CRASH_CYCLES", "3"))
PRODUCERS = 4
TOPIC = "orders"
PATIENCE_S = 120.0
FROM_FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

pytestmark = pytest.mark.slow


class Broker:
    """`kourou serve` on one store and fixed ports, which can be restarted."""

    def __init__(self, store: Path, port: int, namesrv_port: int) -> None:
        self.store = store
        self._port, self._namesrv_port = port, namesrv_port
        self.serving = self._start()
        self.namesrv = self.serving.namesrv

    async def restart(self, number: signal.Signals) -> int:
        """Stop it with a signal, start it again, and return the exit code."""
        return await asyncio.to_thread(self._restart, number)

    def _restart(self, number: signal.Signals) -> int:
        code = self.serving.stop(number).code
        self.serving = self._start()
        return code

    def _start(self) -> Serving:
        return Serving.start(self.store, port=self._port, namesrv_port=self._namesrv_port)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose store is checked at the end."""
    with held_ports(2) as (port, namesrv_port):
        started = Broker(tmp_path / "store", port, namesrv_port)
        try:
            yield started
            assert started.serving.stop().code == 0
            check = run_command("store", "check", str(started.store))
            assert check.code == 0, check.out
        finally:
            started.serving.process.kill()


class Ledger:
    """The acknowledged and the consumed messages."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.consumed: dict[str, int] = {}
        self.is_over = False
        self._changed = asyncio.Event()

    async def send(self, producer: Producer, name: int) -> None:
        """Send until `is_over`; record the acknowledged messages."""
        number = 0
        while not self.is_over:
            key = f"{name}-{number}"
            number += 1
            try:
                receipt = await producer.send(Message(TOPIC, key.encode().ljust(500), keys=[key]))
            except KourouError:
                continue
            self.acknowledged[key] = (receipt.queue.queue_id, receipt.queue_offset)
            self._changed.set()

    def note(self, message: MessageExt) -> None:
        self.consumed[message.keys[0]] = self.consumed.get(message.keys[0], 0) + 1
        self._changed.set()

    async def until_acknowledged(self, more: int) -> None:
        """Wait until `more` further messages are acknowledged."""
        goal = len(self.acknowledged) + more
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < goal:
                self._changed.clear()
                await self._changed.wait()

    async def until_consumed(self) -> None:
        """Wait until all acknowledged messages are consumed."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.consumed.keys() >= self.acknowledged.keys():
                self._changed.clear()
                await self._changed.wait()


async def stored(namesrv: str) -> dict[int, list[str]]:
    """Return the keys of each queue in order; fail if one has a hole."""
    queues: dict[int, list[str]] = {}
    async with PullConsumer("readers", namesrv) as reader:
        for queue in await reader.fetch_subscribe_message_queues(TOPIC):
            keys = queues.setdefault(queue.queue_id, [])
            end = await reader.max_offset(queue)
            while len(keys) < end:
                result = await reader.pull(queue, len(keys))
                assert result.messages, f"nothing at {len(keys)} of {queue}"
                assert [m.queue_offset for m in result.messages] == list(
                    range(len(keys), len(keys) + len(result.messages))
                ), "a hole"
                keys += [message.keys[0] for message in result.messages]
    return queues


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_acknowledged_messages_survive_restarts_under_load(
    broker: Broker, number: signal.Signals
) -> None:
    async def main() -> None:
        ledger, dice = Ledger(), Random(number)
        config = ProducerConfig(send_timeout_ms=60_000)
        consumer = PushConsumer("billing", broker.namesrv, config=FROM_FIRST)
        consumer.subscribe(TOPIC)
        consumer.listen(ledger.note)
        async with Producer("writers", broker.namesrv, config=config) as producer:
            senders = [
                asyncio.create_task(ledger.send(producer, name)) for name in range(PRODUCERS)
            ]
            await ledger.until_acknowledged(10)
            async with consumer:
                for _ in range(CYCLES):
                    await ledger.until_acknowledged(dice.randrange(50, 300))
                    code = await broker.restart(number)
                    assert code == (-number if number == signal.SIGKILL else 0)
                await ledger.until_acknowledged(50)
                ledger.is_over = True
                await asyncio.gather(*senders)
                await ledger.until_consumed()
        queues = await stored(broker.namesrv)
        for key, (queue_id, offset) in ledger.acknowledged.items():
            assert queues[queue_id][offset] == key

    asyncio.run(main())


def test_a_consumer_resumes_when_its_broker_is_back(broker: Broker) -> None:
    async def main() -> None:
        ledger = Ledger()
        consumer = PushConsumer("billing", broker.namesrv, config=FROM_FIRST)
        consumer.subscribe(TOPIC)
        consumer.listen(ledger.note)

        async def send(key: str) -> None:
            async with Producer("writers", broker.namesrv) as producer:
                await producer.send(Message(TOPIC, b"x", keys=[key]))
            ledger.acknowledged[key] = (0, 0)

        await send("before")
        async with consumer:
            await ledger.until_consumed()
            await broker.restart(signal.SIGKILL)  # while it holds pulls
            await send("after")
            await ledger.until_consumed()
        assert ledger.consumed.keys() == {"before", "after"}

    asyncio.run(main())


def test_a_producer_retries_until_its_broker_is_back(broker: Broker) -> None:
    async def main() -> None:
        async with Producer("writers", broker.namesrv) as producer:
            await producer.send(Message(TOPIC, b"first", keys=["first"]))
            restart = asyncio.create_task(broker.restart(signal.SIGKILL))
            await producer.send(Message(TOPIC, b"second", keys=["second"]), timeout_ms=60_000)
            await restart
        found = {key for keys in (await stored(broker.namesrv)).values() for key in keys}
        assert found == {"first", "second"}

    asyncio.run(main())
