"""Scheduled messages of a simulation: each that was acknowledged is delivered, and none twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.testing.disk import SimDisk
from tests.sim.replicas.replica_cluster import NAMESRV, ReplicaCluster
from tests.timed_records import timed_records

TIMED_TOPIC: Final = "timed"
DELAYS_MS: Final = (50, 700, 2_000, 5_000, 12_000)
"""The last ones are longer than the roll window of the replicas."""


@dataclass
class TimedSends:
    """One producer.

    Attributes:
        acknowledged: bodies.
        is_over: tells it to end.
    """

    acknowledged: set[bytes] = field(default_factory=set)
    is_over: bool = False

    async def send(self, cluster: ReplicaCluster, seed: int) -> None:
        """Send messages until the end."""
        rng, number = random.Random(seed), 0
        config = ProducerConfig(send_timeout_ms=3_000)
        producer = Producer("timers", NAMESRV, config=config, runtime=cluster.client_runtime)
        async with producer:
            while not self.is_over:
                number += 1
                body = b"timed %06d" % number
                message = Message(TIMED_TOPIC, body, delay_ms=rng.choice(DELAYS_MS))
                try:
                    receipt = await producer.send(message)
                except KourouError:
                    continue  # it may be stored nevertheless
                if receipt.status is SendStatus.SEND_OK:
                    self.acknowledged.add(body)
                await asyncio.sleep(rng.random() / 3)

    def failures(self, disk: SimDisk, waiting: int) -> list[str]:
        """Return contradictions to the log of the last master.

        Args:
            disk: holds it.
            waiting: number of messages in its wheel: its clock may have been set back.
        """
        sent, delivered = timed_records(disk, TIMED_TOPIC)
        found = [
            f"delivered twice: {body!r}"
            for body in sent
            if len(delivered.get(body, ())) > sent[body]
        ]
        lost = sorted(body for body in self.acknowledged if body not in delivered)
        if len(lost) > max(0, waiting):
            found.append(f"scheduled and lost, with {waiting} waiting: {lost}")
        return found
