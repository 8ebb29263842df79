"""A sync that takes longer than the limit: what it stores counts, once, when it has ended."""

from __future__ import annotations

import asyncio

from kourou.broker.config import FlushDiskType
from kourou.protocol.codes import RequestCode
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
)
from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, Got, PopRig, changed_handle

SYNC = small_config(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=5_000)


def revived(broker: SimulatedBroker) -> int:
    return broker.store.reader.max_offset(retry_topic_v1(GROUP, TOPIC), 0)


def test_pop_whose_checkpoint_is_late_gets_its_messages_alone_and_keeps_them_in_flight() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        broker.flusher.stall()
        first = rig.pop_later(invisible_time=30_000)
        await asyncio.sleep(7)
        assert not first.done()
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0
        assert (await rig.pop()).bodies == []
        broker.flusher.release()
        got = Got(await first, broker.config.broker_name)
        assert got.bodies == [b"a"]
        assert (await rig.pop()).bodies == []
        await asyncio.sleep(26)
        assert revived(broker) == 1
        await asyncio.sleep(30)
        assert revived(broker) == 1

    run_with_broker(test, config=SYNC, is_delivering=True)


def test_late_ack_counts_although_the_invisible_time_ends_before_its_sync() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        [(offset, handle)] = (await rig.pop(invisible_time=3_000)).handles
        broker.flusher.stall()
        header = AckMessageRequestHeader(GROUP, TOPIC, 0, handle, offset)
        answer = rig.send(RequestCode.ACK_MESSAGE, header)
        await asyncio.sleep(12)
        assert not answer.done()
        broker.flusher.release()
        assert (await answer).code == 0
        assert broker.components.popping.in_flight.message_count == 0
        await asyncio.sleep(10)
        assert revived(broker) == 0

    run_with_broker(test, config=SYNC, is_delivering=True)


def test_late_change_of_the_invisible_time_moves_it_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        [(offset, handle)] = (await rig.pop(invisible_time=20_000)).handles
        broker.flusher.stall()
        header = ChangeInvisibleTimeRequestHeader(GROUP, TOPIC, 0, handle, offset, 40_000)
        answer = rig.send(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        await asyncio.sleep(7)
        assert not answer.done()
        broker.flusher.release()
        changed = await answer
        assert changed.code == 0
        assert broker.components.popping.in_flight.message_count == 1
        await asyncio.sleep(31)
        assert revived(broker) == 0
        assert (await rig.ack(changed_handle(handle, offset, changed), offset)).code == 0
        await asyncio.sleep(10)
        assert revived(broker) == 0

    run_with_broker(test, config=SYNC, is_delivering=True)


def test_late_change_after_the_end_of_the_invisible_time_delivers_the_message_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        [(offset, handle)] = (await rig.pop(invisible_time=3_000)).handles
        await asyncio.sleep(2.995)  # the checkpoint is about to be read in the revive queue
        broker.flusher.stall()
        header = ChangeInvisibleTimeRequestHeader(GROUP, TOPIC, 0, handle, offset, 20_000)
        answer = rig.send(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        await asyncio.sleep(4)
        broker.flusher.release()
        assert (await answer).code == 0
        await asyncio.sleep(10)
        assert revived(broker) == 0
        await asyncio.sleep(20)
        assert revived(broker) == 1

    run_with_broker(test, config=SYNC, is_delivering=True)


def test_late_revival_and_late_copy_of_its_checkpoint_store_each_message_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        for stall_s in (3.5, 4.995):  # before the checkpoint is copied; before its messages are
            await rig.pop(max_msg_nums=1, invisible_time=5_000)
            await asyncio.sleep(stall_s)
            broker.flusher.stall()
            await asyncio.sleep(12)
            broker.flusher.release()
            await asyncio.sleep(15)
        assert revived(broker) == 2
        assert broker.components.popping.in_flight.message_count == 0

    run_with_broker(test, config=SYNC, is_delivering=True)


def test_pop_whose_late_sync_fails_is_refused() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=SYNC)
        await broker.start_deliveries()
        rig = PopRig(broker)
        await rig.put(b"a")
        broker.flusher.stall()
        pop = rig.pop_later()
        await asyncio.sleep(7)
        broker.flusher.fail_next(OSError(5, "Input/output error"))
        broker.flusher.release()
        answer = await pop
        assert answer.code != 0
        assert broker.components.popping.in_flight.message_count == 0
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0
        broker.abandon()

    run_virtual(main())
