"""Publication of flights, one message each, with many messages in flight; counts the results."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from data import Flight

from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Durability, Producer, SendReceipt
from kourou.model.message import Message

GROUP: Final = "flight-publisher"
CONFIG: Final = ProducerConfig(
    # Longer than the broker's restart takes: until then failed sends are retried automatically.
    send_timeout_ms=60_000,
    attempt_timeout_ms=10_000,
    in_flight_messages_max=512,
)


@dataclass
class Publication:
    """Counters and latencies of one publication.

    Attributes:
        total: number of messages to publish.
        sent: messages passed to the producer.
        acknowledged: messages confirmed by the broker as stored.
        on_disk: messages confirmed by the broker as stored on disk.
        failures: flight id and error of each failed send.
        latencies_ms: time from `submit` to the receipt, of each message.
        seconds: time from the first message to the last receipt.
        halfway: set when half of the messages are acknowledged.
    """

    total: int
    sent: int = 0
    acknowledged: int = 0
    on_disk: int = 0
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    seconds: float = 0.0
    halfway: asyncio.Event = field(default_factory=asyncio.Event)

    def latency_ms(self, share: float) -> float:
        """Return the latency that this share of the messages did not exceed; 0 if none was sent."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def publish(
    producer: Producer, topic: str, flights: Iterable[Flight], publication: Publication
) -> None:
    """Send all flights and return when each send has ended; update `publication` meanwhile."""
    started_at = time.perf_counter()
    open_sends: set[asyncio.Future[SendReceipt]] = set()
    for flight in flights:
        message = Message(topic, flight.body, tags=flight.carrier, keys=[flight.flight_id])
        future = await producer.submit(message)
        publication.sent += 1
        open_sends.add(future)
        future.add_done_callback(open_sends.discard)
        future.add_done_callback(
            partial(_record, publication, flight.flight_id, time.perf_counter())
        )
    if open_sends:
        await asyncio.wait(open_sends)
    publication.seconds = time.perf_counter() - started_at


def _record(
    publication: Publication, flight_id: str, sent_at: float, future: asyncio.Future[SendReceipt]
) -> None:
    error = future.exception()
    if error is None:
        publication.acknowledged += 1
        publication.on_disk += future.result().durability is Durability.DISK
        if publication.acknowledged * 2 >= publication.total:
            publication.halfway.set()
        publication.latencies_ms.append((time.perf_counter() - sent_at) * 1000)
    else:
        publication.failures.append((flight_id, error))
