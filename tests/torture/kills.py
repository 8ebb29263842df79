"""Repeated kills with -9 of a real broker with eight producers: no acknowledged message is lost.

After each kill the broker is started again, and all messages that it ever acknowledged are read
back and compared by queue, offset and body. Every few cycles it is stopped cleanly, and its files
are checked.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from tests.torture.broker_connection import BrokerConnection
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.filled import warnings
from tests.torture.real_broker import RealBroker

FAULT: Final = "kill -9"
LOST: Final = "acknowledged messages lost"
HOLE: Final = "missing offsets and bytes never sent"
DAMAGE: Final = "findings of store check"
PRODUCERS: Final = 8
TOPIC: Final = "orders"
PATIENCE_S: Final = 120.0
READY_WITHIN_S: Final = 2.0
CHECK_EVERY: Final = 5


@dataclass
class Ledger:
    """Sent and acknowledged messages.

    Attributes:
        sent: all bodies.
        acknowledged: bodies by queue and offset.
        is_over: tells the senders to end.
        may_send: set while the senders may send.
    """

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    is_over: bool = False
    may_send: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, producer: Producer, name: int) -> None:
        """Send until `is_over`; failed sends are not acknowledged."""
        dice, number = Random(name), 0
        while not self.is_over:
            await self.may_send.wait()  # limits the messages to read back
            number += 1
            body = b"%d-%d-" % (name, number) + dice.randbytes(dice.choice((10, 300, 3000)))
            self.sent.add(body)
            try:
                receipt = await producer.send(Message(TOPIC, body))
            except KourouError:
                await asyncio.sleep(0.05)
                continue
            self.acknowledged[receipt.queue.queue_id, receipt.queue_offset] = body

    async def more(self, count: int) -> None:
        """Wait until `count` more messages are acknowledged."""
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < goal:  # noqa: ASYNC110 - eight senders move it
                await asyncio.sleep(0.01)


async def read_back(ledger: Ledger, address: str, cycle: int, outcome: Outcome) -> None:
    """Compare all messages of the broker with the ledger at the time of the call."""
    promised = dict(ledger.acknowledged)
    async with BrokerConnection(address) as connection:
        for queue_id in {queue for queue, _ in promised}:
            held = await connection.read(TOPIC, queue_id)
            if held.refused or held.malformed:
                text = f"cycle {cycle}, queue {queue_id}: {held.refused or held.malformed}"
                outcome.failures.append((HOLE, text))
            for offset, message in held.messages.items():
                if message.body not in ledger.sent:
                    outcome.failures.append((HOLE, f"cycle {cycle}: {queue_id} at {offset}"))
            for (queue, offset), body in promised.items():
                if queue != queue_id:
                    continue
                found = held.messages.get(offset)
                if found is None or found.body != body:
                    outcome.failures.append((LOST, f"cycle {cycle}: {queue} at {offset}"))


async def _kill_again_and_again(broker: RealBroker, size: Size) -> tuple[Outcome, list[float]]:
    ledger, dice, outcome = Ledger(), Random(size.seed), Outcome()
    ready_s: list[float] = []
    config = ProducerConfig(send_timeout_ms=60_000)
    producers = [
        Producer(f"writers-{name}", broker.serving.namesrv, config=config)
        for name in range(PRODUCERS)
    ]
    for producer in producers:
        await producer.start()
    senders = [
        asyncio.create_task(ledger.send(producer, name)) for name, producer in enumerate(producers)
    ]
    for cycle in range(1, size.cycles + 1):
        ledger.may_send.set()
        await ledger.more(dice.randrange(20, 200))
        await asyncio.to_thread(broker.kill)
        ledger.may_send.clear()
        await asyncio.to_thread(broker.start)
        ready_s.append(broker.ready_s)
        await read_back(ledger, broker.serving.broker, cycle, outcome)
        if cycle % CHECK_EVERY == 0 or cycle == size.cycles:
            await _check(broker, f"cycle {cycle}", outcome)
        if cycle % 20 == 0:
            size.say(f"{FAULT}: {cycle} of {size.cycles}, {len(ledger.acknowledged):,} messages")
    ledger.is_over = True
    ledger.may_send.set()
    await asyncio.gather(*senders)
    for producer in producers:
        await producer.close()
    await read_back(ledger, broker.serving.broker, size.cycles, outcome)
    outcome.counts["acknowledged messages"] = len(ledger.acknowledged)
    outcome.counts["cycles"] = size.cycles
    return outcome, ready_s


async def _check(broker: RealBroker, reported: str, outcome: Outcome) -> None:
    """Stop the broker cleanly, check its files, and start it again."""
    stopped = await asyncio.to_thread(broker.stop)
    if stopped.code:
        outcome.failures.append((DAMAGE, f"{reported}: exit code {stopped.code}: {stopped.err}"))
    findings = await asyncio.to_thread(broker.findings)
    outcome.failures += [(DAMAGE, f"{reported}: {text}") for text in findings]
    await asyncio.to_thread(broker.start)


def run(size: Size) -> list[Figure]:
    """Return the figures of `size.cycles` kills."""
    with tempfile.TemporaryDirectory() as made:
        broker = RealBroker(Path(made))
        try:
            with warnings():  # clients warn about lost connections
                outcome, ready_s = asyncio.run(_kill_again_and_again(broker, size))
        finally:
            broker.end()
    p99_s = statistics.quantiles(ready_s, n=100)[98] if len(ready_s) > 1 else max(ready_s)
    return [
        counted(FAULT, LOST, outcome, "acknowledged messages"),
        counted(FAULT, HOLE, outcome, "cycles"),
        counted(FAULT, DAMAGE, outcome, "cycles"),
        Figure(FAULT, "ready again, p99", f"{p99_s:.2f} s", "2 s", held=p99_s <= READY_WITHIN_S),
        Figure(FAULT, "ready again, median", f"{statistics.median(ready_s):.2f} s", "-", held=True),
    ]
