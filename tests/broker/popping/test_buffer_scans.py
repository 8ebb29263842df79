"""Checkpoints of the merge buffer are stored in time, and offsets follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kourou.broker.popping.buffer import PoppedQueue
from kourou.broker.popping.buffer_scans import BufferScans
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.pop_config import PopConfig
from kourou.broker.popping.pop_counts import PopCounts
from kourou.errors import RemoteSystemError
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.encode import RecordDraft
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

Q = PoppedQueue("T", "g", 0)


class Rig:
    """The scans of a broker; stored checkpoints are records of the topic R.

    Attributes:
        refused: number of checkpoints that will be refused.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.refused = 0
        broker.topics.ensure(TopicConfig("T", 1, 1))
        broker.topics.ensure(TopicConfig("R", 1, 1))
        self.scans = BufferScans(broker.components.context, broker.offsets, self.draft, PopCounts())

    def draft(self, checkpoint: PopCheckpoint, queue_id: int, now_ms: int) -> RecordDraft:
        assert queue_id == 3
        assert now_ms == self.broker.clock.now_ms()
        if self.refused:
            self.refused -= 1
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "the timer wheel is off")
        return self.broker.draft(b"%d" % checkpoint.key.start_offset, topic="R")

    def pop(self, start: int, *, invisible_ms: int = 60_000) -> CheckpointKey:
        """Buffer a checkpoint of one message."""
        key = CheckpointKey(*Q, start, self.broker.clock.now_ms(), "b")
        checkpoint = PopCheckpoint(key, (start,), invisible_ms)
        assert self.scans.add(checkpoint, start + 1, 3)
        return key

    def stored(self) -> int:
        """Return the number of checkpoints in the log."""
        return self.broker.store.reader.max_offset("R", 0)

    def committed(self) -> int | None:
        """Return the group's committed offset."""
        return self.broker.offsets.query(Q.group, Q.topic, Q.queue_id)


def run(test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main(broker: SimulatedBroker) -> None:
        rig = Rig(broker)
        await test(rig)
        rig.scans.close()

    run_with_broker(main, config=small_config(pop=PopConfig(enable_pop_buffer_merge=True)))


def test_acknowledged_checkpoints_are_not_stored() -> None:
    async def test(rig: Rig) -> None:
        first, second = rig.pop(0), rig.pop(1)
        assert rig.scans.ack(second, [1])
        assert rig.committed() is None
        assert rig.scans.ack(first, [0])
        assert rig.committed() == 2
        await asyncio.sleep(60)
        assert rig.stored() == 0

    run(test)


def test_checkpoint_is_stored_when_due_and_its_offset_committed_after_that() -> None:
    async def test(rig: Rig) -> None:
        key = rig.pop(0)
        await asyncio.sleep(9.99)
        assert (rig.stored(), rig.committed()) == (0, None)
        await asyncio.sleep(0.1)
        assert (rig.stored(), rig.committed()) == (1, 1)
        assert not rig.scans.ack(key, [0])

    run(test)


def test_checkpoint_that_is_refused_is_stored_a_second_later() -> None:
    async def test(rig: Rig) -> None:
        rig.pop(0)
        rig.pop(1)
        rig.refused = 1
        await asyncio.sleep(10.5)
        assert (rig.stored(), rig.committed()) == (1, None)
        await asyncio.sleep(1)
        assert (rig.stored(), rig.committed()) == (2, 2)

    run(test)


def test_stop_stores_all_checkpoints() -> None:
    async def test(rig: Rig) -> None:
        for start in range(300):
            rig.pop(start)
        await rig.scans.stop()
        assert (rig.stored(), rig.committed()) == (300, 300)

    run(test)


def test_stop_ends_although_nothing_can_be_stored() -> None:
    async def test(rig: Rig) -> None:
        for start in range(300):
            rig.pop(start)
        rig.refused = 1_000
        await rig.scans.stop()
        assert (rig.stored(), rig.committed()) == (0, None)

    run(test)


def test_offset_is_not_set_back_and_a_reset_is_not_overridden() -> None:
    async def test(rig: Rig) -> None:
        offsets = rig.broker.offsets
        first = rig.pop(0)
        offsets.commit(Q.group, Q.topic, Q.queue_id, 5)
        assert rig.scans.ack(first, [0])
        assert rig.committed() == 5
        second = rig.pop(5)
        offsets.reset(Q.group, Q.topic, Q.queue_id, 2)
        assert rig.scans.ack(second, [5])
        assert rig.committed() == 2

    run(test)


def test_offset_follows_reads_that_find_nothing() -> None:
    async def test(rig: Rig) -> None:
        rig.scans.add_skipped(Q, 7)
        assert rig.committed() == 7
        first = rig.pop(7)
        rig.scans.add_skipped(Q, 12)
        assert rig.committed() == 7
        assert rig.scans.buffer.latest_offset(Q) == 12
        assert rig.scans.ack(first, [7])
        assert rig.committed() == 12

    run(test)
