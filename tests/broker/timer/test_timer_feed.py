"""Messages that the broker stored itself enter the wheel without a read, in any mix with others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from kourou.broker.timer.timer_intake import FED_MAX, FedMessage
from kourou.model.topic import TIMER_TOPIC
from kourou.store.message_store import AppendedRecord
from kourou.testing.disk import SimDisk
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.timer.timer_rig import timer_draft


def fed(appended: AppendedRecord, due_at_ms: int) -> FedMessage:
    place = appended.queue_offset, appended.physical_offset, appended.size, appended.store_at_ms
    return FedMessage(*place, due_at_ms)


def delivered(broker: SimulatedBroker) -> list[AppendedRecord]:
    return [one for one in broker.arrivals if one.topic == "T"]


@pytest.mark.parametrize("seed", range(6))
def test_each_message_is_delivered_once_in_the_order_of_times(seed: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        dice, count = Random(seed), 0
        for _ in range(30):
            due = [broker.clock.now_ms() + dice.randrange(1_500, 9_000) for _ in range(4)]
            drafts = [timer_draft(broker, b"%d" % (count + n), at) for n, at in enumerate(due)]
            count += len(due)
            stored = (await broker.store_messages(drafts)).appended
            messages = [
                fed(one, at) for one, at in zip(stored, due, strict=True) if dice.random() < 0.7
            ]
            if dice.random() < 0.8:
                broker.timers.on_own_stored("T", messages)
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random())
        await asyncio.sleep(12)
        assert len(delivered(broker)) == count
        assert broker.timers.waiting == broker.timers.intake_lag == 0
        assert broker.timers.counts.metrics().timing_count["T"].count == 0

    run_with_broker(test, is_delivering=True)


def test_fed_message_is_not_read() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 2_000
        reads: list[object] = []
        reader = broker.store.reader
        get_resident = reader.get_resident

        def counted(topic: str, *args: object) -> object:
            if topic == TIMER_TOPIC:
                reads.append(args)
            return get_resident(topic, *args)  # type: ignore[arg-type]

        reader.get_resident = counted  # type: ignore[method-assign,assignment]
        result = await broker.commit.put_and_wait(
            [timer_draft(broker, b"x", due_at_ms)], broker.clock.now_ms()
        )
        broker.timers.on_own_stored("T", [fed(result.appended[0], due_at_ms)])
        await asyncio.sleep(5)
        assert len(delivered(broker)) == 1
        assert reads == []

    run_with_broker(test, is_delivering=True)


def test_message_that_is_in_the_wheel_already_is_not_fed_again() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 2_000
        result = await broker.store_messages([timer_draft(broker, b"x", due_at_ms)])
        await asyncio.sleep(0.5)
        assert broker.timers.waiting == 1
        broker.timers.on_own_stored("T", [fed(result.appended[0], due_at_ms)])
        await asyncio.sleep(5)
        assert len(delivered(broker)) == 1

    run_with_broker(test, is_delivering=True)


def test_slot_that_is_read_just_after_a_fed_message_has_all_messages() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 20_000
        await broker.store_messages([timer_draft(broker, b"first", due_at_ms)])
        await asyncio.sleep(15)
        for number in range(600):  # some enter the slot in the step that begins to read it
            draft = timer_draft(broker, b"%d" % number, due_at_ms)
            stored = (await broker.store_messages([draft])).appended
            broker.timers.on_own_stored("T", [fed(stored[0], due_at_ms)])
            await asyncio.sleep(0.007)
        await asyncio.sleep(10)
        assert len(delivered(broker)) == 601

    run_with_broker(test, is_delivering=True)


def test_feed_that_is_full_is_forgotten_and_the_topic_is_read() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 2_000
        later = [FedMessage(10**9 + number, 0, 100, 0, due_at_ms) for number in range(FED_MAX)]
        broker.timers.on_own_stored("T", later)
        broker.timers.on_own_stored("T", [])
        await broker.store_messages([timer_draft(broker, b"x", due_at_ms)])
        await asyncio.sleep(5)
        assert len(delivered(broker)) == 1

    run_with_broker(test, is_delivering=True)


class FullDisk(SimDisk):
    """A disk on which no file of the timer log can be created."""

    is_full = False

    def truncate(self, name: str, size: int) -> None:
        if self.is_full and name.startswith("timerlog"):
            raise OSError(28, "No space left on device", name)
        super().truncate(name, size)

    def write(
        self, name: str, offset: int, buffers: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        if self.is_full and name.startswith("timerlog"):
            raise OSError(28, "No space left on device", name)
        super().write(name, offset, buffers)


def test_fed_messages_wait_while_the_timer_log_cannot_be_written() -> None:
    disk = FullDisk()

    async def test(broker: SimulatedBroker) -> None:
        disk.is_full = True
        due = [broker.clock.now_ms() + 2_000 + number for number in range(5)]
        drafts = [timer_draft(broker, b"%d" % number, at) for number, at in enumerate(due)]
        stored = (await broker.store_messages(drafts)).appended
        broker.timers.on_own_stored("T", list(map(fed, stored, due)))
        await asyncio.sleep(1.5)
        disk.is_full = False
        await asyncio.sleep(8)
        assert len(delivered(broker)) == len(due)
        assert broker.timers.waiting == 0

    run_with_broker(test, disk, is_delivering=True)


def test_slot_with_units_that_could_not_be_written_waits_for_them() -> None:
    disk = FullDisk()

    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() // 1_000 * 1_000 + 20_100
        await broker.store_messages([timer_draft(broker, b"0", due_at_ms)])
        await asyncio.sleep(2)
        disk.is_full = True
        await broker.store_messages([timer_draft(broker, b"1", due_at_ms + 1)])
        await asyncio.sleep(25)
        assert len(delivered(broker)) == 0
        disk.is_full = False
        await asyncio.sleep(5)
        assert len(delivered(broker)) == 2

    run_with_broker(test, disk, is_delivering=True)
