"""Messages acknowledged or visible on the fast path survive a power cut at any disk operation."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import encode_frame
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.connection import Request
from kourou.store.config import StoreConfig
from kourou.store.message_store import GetRequest, MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, small_config

QUEUES = range(3)
READS = 60


class PowerLostError(Exception):
    """Raised by the disk at the power cut."""


class CrashRun:
    """A broker whose producers send until the power is cut.

    Attributes:
        sent: queue id -> bodies, in order.
        promised: queue id -> number of messages that were acknowledged or visible to consumers.
    """

    def __init__(self, seed: int, config: BrokerConfig) -> None:
        self.disk = SimDisk(seed)
        self.sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in QUEUES}
        self.promised = dict.fromkeys(QUEUES, 0)
        self._config = config
        self._dice = Random(seed)
        self._operations_left = self._dice.randrange(5, 200)
        self._general = 0
        self._sends = 0
        self._is_over = False

    async def live(self, *, is_killed: bool) -> None:
        """Send in random reads until a kill, or a power cut during a disk operation."""
        broker = SimulatedBroker(self.disk, config=self._config)
        rig = SendRig(broker)

        def on_send(request: Request) -> RemotingCommand | None:
            self._general += 1
            return rig.handlers.on_send_message(request)

        await broker.topics.persist()
        lone = LoneConnection({310: on_send, 320: on_send}, rig.fast_path)

        def on_operation(_operation: str, _name: str) -> None:
            self._operations_left -= 1
            if self._operations_left < 0:
                if not self._is_over:
                    self._take_down(broker, lone)
                self._is_over = True
                if not is_killed:
                    raise PowerLostError

        self.disk.on_operation = on_operation
        for _ in range(READS):
            lone.receive_bytes(b"".join(self._frame() for _ in range(self._dice.randrange(1, 12))))
            await asyncio.sleep(self._dice.choice((0, 0, 0.001, 0.02)))
            if self._is_over:
                break
        if not self._is_over:
            self._take_down(broker, lone)
        assert self._general < self._sends / 2 + 10, "most took the fast path"
        self.disk.on_operation = None
        broker.abandon()
        if not is_killed:
            self.disk.crash()

    def _frame(self) -> bytes:
        """Return the frame of the next message or batch."""
        self._sends += 1
        queue_id = self._dice.choice(QUEUES)
        count = self._dice.choice((1, 1, 1, 2, 9))
        bodies = [self._dice.randbytes(self._dice.randrange(1, 700)) for _ in range(count)]
        self.sent[queue_id] += bodies
        texts = [f"UNIQ_KEY\x01{self._dice.getrandbits(128):032X}\x02" for _ in bodies]
        if count == 1:
            return encode_frame(message(bodies[0], texts[0], queue_id=queue_id))
        items = [BatchItem(0, one, text.encode()) for one, text in zip(bodies, texts, strict=True)]
        code = RequestCode.SEND_BATCH_MESSAGE
        return encode_frame(
            message(encode_batch(items), texts[0], code=code, batch=True, queue_id=queue_id)
        )

    def _take_down(self, broker: SimulatedBroker, lone: LoneConnection) -> None:
        """Note the messages acknowledged or visible so far."""
        for arrival in broker.arrivals:
            end = arrival.queue_offset + 1
            self.promised[arrival.queue_id] = max(self.promised[arrival.queue_id], end)
        for answer in lone.sent():
            assert answer.code == 0, answer.remark
            fields = answer.ext_fields
            queue_id = int(fields["queueId"])
            end = int(fields["queueOffset"]) + len(fields["msgId"].split(","))
            self.promised[queue_id] = max(self.promised[queue_id], end)

    def compare(self) -> None:
        """Reopen the store: it holds all promised messages, and only messages that were sent."""
        store = MessageStore.open(self.disk, self._config.store_config, 2_000_000_000_000, pid=1)
        for queue_id in QUEUES:
            end = store.reader.max_offset("T", queue_id)
            assert end >= self.promised[queue_id]
            at = 0
            while at < end:
                found = store.reader.get("T", queue_id, GetRequest(at, 32, 1 << 20, None))
                for stored in decode_messages(found.body, decompress=False):
                    assert stored.body == self.sent[queue_id][stored.queue_offset]
                assert found.plan.next_offset == at + found.plan.count
                at = found.plan.next_offset
        store.close(2_000_000_000_000)
        assert check_store(self.disk).findings == []


def assert_outlived(seed: int, flush: FlushDiskType, *, is_killed: bool) -> None:
    store = StoreConfig(commitlog_segment_bytes=1 << 16, consumequeue_file_bytes=20 * 50)
    config = small_config(flush_disk_type=flush, store=store, max_message_size_bytes=1 << 15)
    life = CrashRun(seed, config)
    run_virtual(life.live(is_killed=is_killed))
    life.compare()


@pytest.mark.parametrize("seed", range(20))
def test_acknowledged_or_visible_messages_survive_a_power_cut(seed: int) -> None:
    assert_outlived(seed, FlushDiskType.SYNC_FLUSH, is_killed=False)


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", range(6))
def test_acknowledged_or_visible_messages_survive_a_kill(seed: int, flush: FlushDiskType) -> None:
    assert_outlived(seed, flush, is_killed=True)
