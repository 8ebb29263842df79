"""Senders and readers of a set of replicas, and the answers that they have received."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import ResponseCode
from kourou.protocol.pulling import PullMessageResponseHeader
from kourou.protocol.record.decode import decode_messages
from tests.torture.broker_connection import BrokerConnection
from tests.torture.replicas.processes import NAME

TOPIC: Final = "T"
SENDERS: Final = 4
QUEUES: Final = SENDERS + 1
"""Each sender has a queue of its own; the last one is that of the Java client."""
_PAUSE_S: Final = (0.0, 0.06)
"""Pause of a sender after each message."""
_READ_PAUSE_S: Final = 0.05

Slot = tuple[int, int]
"""Queue id and queue offset."""


class Sent(NamedTuple):
    """Times of an acknowledged send, of `time.perf_counter`."""

    began_s: float
    acknowledged_s: float
    by_java: bool = False


def mark_of(body: bytes) -> bytes:
    """Return the number and a digest of a body, which take less memory."""
    return body[:12] + hashlib.blake2b(body, digest_size=8).digest()


@dataclass
class Ledger:
    """Answers that clients have received.

    Attributes:
        acknowledged: marks of bodies by slot.
        read: marks of bodies that readers were given, by slot.
        sends: all acknowledged sends, oldest first.
        failures: contradictions among the answers.
        refused: number of failed sends.
        may_send: set while senders send.
        in_flight: number of sends without an answer, and of programs that send.
    """

    acknowledged: dict[Slot, bytes] = field(default_factory=dict)
    read: dict[Slot, bytes] = field(default_factory=dict)
    sends: list[Sent] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    refused: int = 0
    may_send: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0

    def acknowledge(self, slot: Slot, body: bytes, sent: Sent) -> None:
        """Note an acknowledged message."""
        mark = mark_of(body)
        if slot in self.acknowledged:
            self.failures.append((REUSED, f"{slot}: {self.acknowledged[slot]!r}, {mark!r}"))
        self.acknowledged[slot] = mark
        self.sends.append(sent)

    def note_read(self, slot: Slot, body: bytes, source: str) -> None:
        """Note a message that a broker gave to a reader."""
        mark = mark_of(body)
        before = self.read.setdefault(slot, mark)
        if before != mark:
            text = f"{slot} of {source}: {mark!r}, another broker had {before!r}"
            self.failures.append((TAKEN_BACK, text))

    async def until_quiet(self) -> None:
        """Stop the senders, and wait for the answers."""
        self.may_send.clear()
        while self.in_flight:  # noqa: ASYNC110 - of several senders
            await asyncio.sleep(0.01)


REUSED: Final = "queue offsets acknowledged twice"
TAKEN_BACK: Final = "messages that brokers deliver differently"
ORDER: Final = "messages of one sender out of order"


async def send(ledger: Ledger, namesrv: str, queue_id: int, seed: int) -> None:
    """Send to one queue, one message after the other, until cancelled."""
    dice, number, last = Random(seed), 0, -1
    queue = MessageQueue(TOPIC, NAME, queue_id)
    async with Producer(f"senders-{queue_id}", namesrv, config=ProducerConfig()) as producer:
        while True:
            await ledger.may_send.wait()
            number += 1
            body = b"%d-%d-" % (queue_id, number) + dice.randbytes(dice.choice((10, 300, 3000)))
            began_s = time.perf_counter()
            ledger.in_flight += 1
            try:
                receipt = await producer.send(Message(TOPIC, body), queue=queue)
            except KourouError:
                ledger.refused += 1
            else:
                if receipt.status is SendStatus.SEND_OK:
                    offset = receipt.queue_offset
                    sent = Sent(began_s, time.perf_counter())
                    ledger.acknowledge((queue_id, offset), body, sent)
                    if offset <= last:
                        ledger.failures.append((ORDER, f"queue {queue_id}: {last}, {offset}"))
                    last = offset
            finally:
                ledger.in_flight -= 1
            await asyncio.sleep(dice.uniform(*_PAUSE_S))


async def read(ledger: Ledger, address: str) -> None:
    """Pull each queue of one broker from its end on until cancelled."""
    offsets = dict.fromkeys(range(QUEUES), 0)
    while True:
        try:
            async with BrokerConnection(address) as connection:
                while True:
                    for queue_id in range(QUEUES):
                        await _read_on(ledger, connection, address, queue_id, offsets)
                    await asyncio.sleep(_READ_PAUSE_S)
        except KourouError:
            await asyncio.sleep(0.5)


async def _read_on(
    ledger: Ledger,
    connection: BrokerConnection,
    address: str,
    queue_id: int,
    offsets: dict[int, int],
) -> None:
    answer = await connection.pull(TOPIC, queue_id, offsets[queue_id])
    if answer.code == ResponseCode.SUCCESS:
        for message in decode_messages(answer.body):
            ledger.note_read((queue_id, message.queue_offset), message.body, address)
        offsets[queue_id] = answer.header(PullMessageResponseHeader).next_begin_offset
