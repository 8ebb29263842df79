"""History of the answers to clients of a simulation, and its comparison with the logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import ResponseCode
from kourou.protocol.pulling import PullMessageResponseHeader
from kourou.protocol.record.decode import decode_messages
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.epoch_file import read_epochs
from kourou.store.state.file_sizes import log_files
from kourou.store.timer.wheel_files import TIMER_CHECK
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.sim.replicas.replica_cluster import (
    HOST,
    NAME,
    NAMESRV,
    REPLICAS,
    SEGMENT_BYTES,
    ReplicaCluster,
)
from tests.torture.broker_connection import BrokerConnection

TOPIC: Final = "T"
QUEUES: Final = 2
_HEAD_BYTES_MAX: Final = 200
"""At least the bytes of a record before its body."""

Slot = tuple[int, int]
"""Queue id and queue offset."""


@dataclass
class History:
    """Answers that clients have received.

    Attributes:
        acknowledged: body, and the master's port, by slot.
        read: bodies that readers were given.
        failures: contradictions.
        overlaps: masters that have accepted sends at once.
        refused: number of failed sends.
        body_bytes: least and greatest size of bodies, besides their number.
        is_over: tells senders and readers to end.
    """

    acknowledged: dict[Slot, tuple[bytes, int]] = field(default_factory=dict)
    read: dict[Slot, bytes] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    refused: int = 0
    body_bytes: tuple[int, int] = (1, 1_500)
    is_over: bool = False

    async def send(self, cluster: ReplicaCluster, queue_id: int, seed: int) -> None:
        """Send to one queue, one message after the other."""
        rng, number, last = random.Random(seed), 0, -1
        queue = MessageQueue(TOPIC, NAME, queue_id)
        producer = Producer(
            f"senders-{queue_id}",
            NAMESRV,
            config=ProducerConfig(send_timeout_ms=3_000),
            runtime=cluster.client_runtime,
        )
        async with producer:
            while not self.is_over:
                number += 1
                body = b"%d-%06d-" % (queue_id, number)
                body += rng.randbytes(rng.randint(*self.body_bytes))
                try:
                    receipt = await producer.send(Message(TOPIC, body), queue=queue)
                except KourouError:
                    self.refused += 1
                else:
                    if receipt.status is SendStatus.SEND_OK:
                        slot = queue_id, receipt.queue_offset
                        if slot in self.acknowledged:
                            self.failures.append(f"acknowledged twice: {slot}")
                        if receipt.queue_offset <= last:
                            self.failures.append(f"order: {slot} after {last}")
                        last = receipt.queue_offset
                        position = int(receipt.offset_msg_id[16:], 16)
                        self.acknowledged[slot] = body, int(receipt.offset_msg_id[8:16], 16)
                        self._count_copies(cluster, slot, position, body, receipt.copies or 1)
                await asyncio.sleep(rng.random() / 5)

    def _count_copies(
        self, cluster: ReplicaCluster, slot: Slot, position: int, body: bytes, told: int
    ) -> None:
        """Check that as many brokers as promised have a message that is acknowledged now."""
        start = position - position % SEGMENT_BYTES
        name = f"{COMMITLOG}/{start:020}"
        copies = 0
        for index in range(REPLICAS):
            disk = cluster.machines[f"broker-{index}"].disk
            if disk.exists(name):
                copies += body in disk.read(name, position - start, len(body) + _HEAD_BYTES_MAX)
        if copies < max(told, cluster.min_in_sync) and not cluster.may_lack:
            self.failures.append(f"{copies} copies of {slot}, and {told} were promised")

    async def read_all(self, cluster: ReplicaCluster, index: int) -> None:
        """Read the queues of one replica."""
        offsets = dict.fromkeys(range(QUEUES), 0)
        address = f"{HOST}:{cluster.port(index)}"
        while not self.is_over:
            try:
                async with BrokerConnection(address, cluster.client_runtime) as connection:
                    while not self.is_over:
                        for queue_id in range(QUEUES):
                            async with asyncio.timeout(3):
                                await self._read_on(connection, queue_id, offsets)
                        await asyncio.sleep(0.1)
            except (KourouError, TimeoutError):
                await asyncio.sleep(0.3)

    async def _read_on(
        self, connection: BrokerConnection, queue_id: int, offsets: dict[int, int]
    ) -> None:
        answer = await connection.pull(TOPIC, queue_id, offsets[queue_id])
        if answer.code != ResponseCode.SUCCESS:
            return
        for message in decode_messages(answer.body):
            slot = queue_id, message.queue_offset
            before = self.read.setdefault(slot, message.body)
            if before != message.body:
                self.failures.append(f"read two messages at {slot}")
        offsets[queue_id] = answer.header(PullMessageResponseHeader).next_begin_offset

    # In the end

    def check(self, cluster: ReplicaCluster, failed_disks: Collection[int] = ()) -> None:
        """Compare the logs of all replicas with each other and with the history.

        Args:
            cluster: the cluster, whose brokers are stopped.
            failed_disks: indexes of brokers whose disks have failed a write.
        """
        disks = [cluster.machines[f"broker-{index}"].disk for index in range(REPLICAS)]
        logs = [_records(disk) for disk in disks]
        for index, log in enumerate(logs[1:], 1):
            if log != logs[0]:
                at = next((at for at in log if logs[0].get(at) != log[at]), max(log, default=0))
                self.failures.append(f"logs of 0 and {index} differ at {at}")
        stored = self._slots(logs[0])
        for slot, (body, _) in self.acknowledged.items():
            if stored.get(slot, (b"", 0))[0] != body:
                self.failures.append(f"lost: {slot}")
        for slot, body in self.read.items():
            if stored.get(slot, (b"", 0))[0] != body:
                self.failures.append(f"read and gone: {slot}")
        self._check_epochs(disks[0], stored)
        for index, disk in enumerate(disks):
            findings = check_store(disk).findings
            if index in failed_disks:
                # Timer files that could not be written are rebuilt while the broker serves.
                findings = [one for one in findings if one.file != TIMER_CHECK]
            self.failures += [f"store {index}: {one.file}: {one.problem}" for one in findings]

    def _slots(self, log: dict[int, tuple[str, Slot, bytes]]) -> dict[Slot, tuple[bytes, int]]:
        stored: dict[Slot, tuple[bytes, int]] = {}
        for position, (topic, slot, body) in log.items():
            if topic == TOPIC:
                if slot in stored:
                    self.failures.append(f"in the log twice: {slot}")
                stored[slot] = body, position
        return stored

    def _check_epochs(self, disk: SimDisk, stored: dict[Slot, tuple[bytes, int]]) -> None:
        """Check that one master has acknowledged all of an epoch."""
        epochs, masters = read_epochs(disk), dict[int, int]()
        for slot, (_, port) in self.acknowledged.items():
            found = epochs.at(stored[slot][1]) if slot in stored else None
            if found is not None and masters.setdefault(found[0].epoch, port) != port:
                self.failures.append(f"two masters acknowledged in epoch {found[0].epoch}")


def _records(disk: SimDisk) -> dict[int, tuple[str, Slot, bytes]]:
    """Return topic, slot and body of the records of a log by position."""
    return {
        piece.position: (
            piece.header.topic,
            (piece.header.queue_id, piece.header.queue_offset),
            bytes(piece.header.body(piece.buffer)),
        )
        for piece in walk_log(disk, log_files(disk, COMMITLOG), SEGMENT_BYTES)
        if piece.header is not None
    }
