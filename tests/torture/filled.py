"""A filled store, with the test's own ledger of its contents.

It was filled through a broker in virtual time: messages of several topics with keys and tags,
delayed messages (delivered and waiting), committed offsets. Everything was saved several times, so
that each config file has an older backup. One image is of a clean stop, the other of a kill.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker
from kourou.model.message import MessageExt
from kourou.protocol.codes import ResponseCode
from kourou.remoting.network import format_address
from kourou.store.config import StoreConfig
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime
from tests.torture.broker_connection import BrokerConnection
from tests.torture.images import File, image_of

KIB: Final = 1024
CONFIG: Final = BrokerConfig(
    port=10_911,
    max_message_size_bytes=8 * KIB,
    pending_connection_bytes_max=1024 * KIB,
    consumer_offset_interval_ms=1_000,
    delay_offset_interval_ms=1_000,
    store=StoreConfig(
        commitlog_segment_bytes=32 * KIB,
        consumequeue_file_bytes=20 * 50,
        queue_sync_interval_ms=5_000,
        free_bytes_min=1,
        index_slots=50,
        index_entries=150,
    ),
)
QUEUES: Final = (("orders", 0), ("orders", 1), ("orders", 2), ("bills", 0), ("late", 0))
ALL_QUEUES: Final = (*QUEUES, *((f"extra-{number}", 0) for number in range(6)))
GROUPS: Final = ("billing", "shipping")
ROUNDS: Final = 6
PER_ROUND: Final = 25
ROUND_S: Final = 150
FILLED_S: Final = ROUNDS * ROUND_S
WAITING_S: Final = 660
"""Time after which all delayed messages are delivered: level 14 takes 10 minutes."""

Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A sent message, which must be served unchanged."""

    body: bytes
    key: str
    tag: str

    def is_of(self, message: MessageExt) -> bool:
        """Tell whether a served message is this one."""
        return (message.body, message.keys, message.tags) == (self.body, [self.key], self.tag)


@dataclass
class Filled:
    """The store's files and contents.

    Attributes:
        closed: the files after a clean stop.
        killed: the files after a kill, with all data written and synced before.
        messages: by topic, queue and offset, without the delayed ones.
        delayed: delayed messages by key; some are delivered, others are not due yet.
        committed: by group, topic and queue: all committed offsets, oldest first.
    """

    closed: Mapping[str, File] = field(default_factory=dict)
    killed: Mapping[str, File] = field(default_factory=dict)
    messages: dict[Place, SentMessage] = field(default_factory=dict)
    delayed: dict[str, SentMessage] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)


@asynccontextmanager
async def served(
    disk: SimDisk, later_s: int = FILLED_S, *, ends: bool = True
) -> AsyncIterator[BrokerConnection]:
    """Start a broker on the disk, in virtual time; stop it at the end, or kill it."""
    runtime = sim_runtime(later_s, epoch_ms=EPOCH_MS + later_s * 1000)
    broker = Broker(CONFIG, disk, runtime, SimFlusher)
    address = await broker.start()
    try:
        async with BrokerConnection(format_address(address), runtime) as connection:
            yield connection
    finally:
        if ends:
            await broker.stop()
        else:
            broker.abandon()
            await asyncio.sleep(0)


@contextmanager
def warnings() -> Iterator[list[str]]:
    """Collect the texts of warnings and errors logged in the block, instead of printing them."""
    texts: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    logger, handler = logging.getLogger("kourou"), Collector(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


@cache
def filled() -> Filled:
    """Return the store, which is identical in each call."""
    disk, sent = SimDisk(1), Filled()

    async def main() -> None:
        dice = Random(1)
        for number in range(ROUNDS):
            is_last = number == ROUNDS - 1
            async with served(disk, number * ROUND_S, ends=not is_last) as connection:
                await _fill(connection, sent, dice, number)
                await asyncio.sleep(20)  # delayed messages are delivered, all tables saved
                if is_last:
                    sent.killed = image_of(disk)
        async with served(disk):
            await asyncio.sleep(2)
        sent.closed = image_of(disk)

    with warnings():
        run_virtual(main())
    return sent


async def _fill(
    connection: BrokerConnection, sent: Filled, dice: Random, round_number: int
) -> None:
    for number in range(PER_ROUND):
        # Use each queue in the first round, so that the topic file's backup has all topics too.
        is_new = not round_number and number < len(QUEUES)
        topic, queue_id = QUEUES[number if is_new else dice.randrange(len(QUEUES))]
        key, tag = f"key-{round_number}-{number}", dice.choice(("red", "green"))
        body = key.encode() + b"." + dice.randbytes(dice.choice((20, 300, 900)))
        await _send(
            connection, sent, topic, queue_id, SentMessage(body, key, tag), dice.choice((1, 14))
        )
    await _send(
        connection, sent, f"extra-{round_number}", 0, SentMessage(b"new in its file", "new", "red")
    )
    for group in GROUPS:
        for topic, queue_id in QUEUES:
            ends = [place[2] + 1 for place in sent.messages if place[:2] == (topic, queue_id)]
            if ends:
                offset = dice.randint(0, max(ends))
                await connection.commit(group, topic, queue_id, offset)
                sent.committed.setdefault((group, topic, queue_id), []).append(offset)


async def _send(
    connection: BrokerConnection,
    sent: Filled,
    topic: str,
    queue_id: int,
    message: SentMessage,
    level: int = 0,
) -> None:
    """Send a message; to topic `late` with delay level `level`."""
    properties = {"KEYS": message.key, "TAGS": message.tag}
    if topic == "late":
        properties["DELAY"] = str(level)
    answer = await connection.send(topic, queue_id, message.body, properties)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    if topic == "late":
        sent.delayed[message.key] = message
    else:
        sent.messages[topic, queue_id, int(answer.ext_fields["queueOffset"])] = message
