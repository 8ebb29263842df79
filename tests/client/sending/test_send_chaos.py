"""Each send ends in time and is counted once, with random broker behaviour and cancellations."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.command import RemotingCommand
from kourou.remoting.connection import Request
from kourou.testing.inspection import in_flight_of, instance_of, sender_of
from tests.client.sending.test_first_try import (
    Broker,
    against,
    answered,
    close_connection,
    silent,
    stored,
)

SENDS = 300
IN_FLIGHT_MAX = 20
TICK_S = 0.0101
"""Tolerance for late timeouts and rounding."""


class Chaos:
    """A broker and callers with random behaviour, reproducible by seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.late_s: list[float] = []

    def on_send(self, request: Request) -> RemotingCommand | None:
        """Store the message, or do something else to it."""
        others: list[Callable[[Request], RemotingCommand | None]] = [
            answered(2),
            answered(1500),
            answered(0),
            close_connection,
            silent,
            self._late,
            _twice,
            self._garbage,
        ]
        choice = self.rng.choice(others) if self.rng.random() < 0.5 else stored
        return choice(request)

    def _late(self, request: Request) -> None:
        loop, connection = asyncio.get_running_loop(), request.connection
        loop.call_later(self.rng.random() * 0.3, lambda: connection.send(stored(request)))

    def _garbage(self, request: Request) -> None:
        request.connection.send_frames(self.rng.randbytes(30))

    def select(self, queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        """Choose any queue, or fail."""
        if self.rng.random() < 0.1:
            raise self.rng.choice([LookupError, StopIteration, KourouError])
        return self.rng.choice(queues)

    async def send(self, producer: Producer) -> None:
        """Send one message by a random method, sometimes cancel it, and record the outcome."""
        rng, loop = self.rng, asyncio.get_running_loop()
        await asyncio.sleep(rng.random() * 0.1)
        timeout_ms = rng.choice([5, 50, 300])
        message = Message("T", b"x" * rng.choice([1, 1, 5_000]))
        queue = rng.choice([None, self.select])
        began_s = loop.time()
        sending: asyncio.Future[SendReceipt]
        if rng.random() < 0.3:
            sending = asyncio.ensure_future(
                producer.send(message, timeout_ms=timeout_ms, queue=queue)
            )
        else:
            sending = await producer.submit(message, timeout_ms=timeout_ms, queue=queue)
            began_s = loop.time()  # the timeout begins after the wait for other messages in flight
        assert len(in_flight_of(producer)) <= IN_FLIGHT_MAX
        if rng.random() < 0.3:
            loop.call_later(rng.choice([0, 0.001, 0.01, 0.1]), sending.cancel)
        await asyncio.wait({sending})
        self.late_s.append(loop.time() - began_s - timeout_ms / 1000)
        if sending.cancelled():
            self.ends["cancelled"] += 1
        else:
            self.ends["failed" if sending.exception() else "stored"] += 1


@pytest.mark.parametrize("seed", range(6))
def test_each_send_ends_in_time_and_is_counted_once(seed: int) -> None:
    chaos = Chaos(seed)

    async def body(producer: Producer, broker: Broker) -> None:
        await asyncio.gather(*(chaos.send(producer) for _ in range(SENDS)))
        await producer.flush()
        assert max(chaos.late_s) < TICK_S
        assert all(chaos.ends[end] > 20 for end in ("stored", "failed", "cancelled"))
        stats, in_flight = producer.stats(), in_flight_of(producer)
        assert (stats.in_flight, len(in_flight), in_flight.size_bytes) == (0, 0, 0)
        assert not sender_of(producer).fallbacks
        # A send that ends in the turn of its cancellation may be counted by its outcome.
        assert chaos.ends["stored"] <= stats.sent_total - 1
        assert chaos.ends["failed"] <= stats.failed_total
        assert stats.sent_total - 1 + stats.failed_total <= SENDS
        await asyncio.sleep(1)
        for connection in instance_of(producer).pool.connections():
            assert not len(connection.pending), "no pending request is left"
        broker.answers[:] = [stored]
        await producer.send(Message("T", b"after all"))

    against([chaos.on_send], body, in_flight_messages_max=IN_FLIGHT_MAX)


def _twice(request: Request) -> RemotingCommand:
    request.connection.send(stored(request))
    return stored(request)
