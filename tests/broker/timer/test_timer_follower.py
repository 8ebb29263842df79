"""A slave takes the progress of its master's timer when its own log has what that covers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kourou.broker.timer.timer_counts import TimerCounts
from kourou.broker.timer.timer_follower import TimerFollower
from kourou.broker.timer.timer_storage import TimerStorage
from kourou.protocol.timer_progress import ReplicaProgress
from kourou.store.timer.layouts import TimerCheck, encode_check
from kourou.store.timer.timer_log import LOG_FILE_BYTES, TIMER_LOG
from kourou.store.timer.wheel_files import TIMER_CHECK, read_check
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.timer.timer_rig import send, timer_draft

WINDOW_MS = 172_800_000


class Rig:
    """A follower of timers on the store of a broker that delivers nothing.

    Attributes:
        copied: position up to which the log counts as copied.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.copied = 0
        context = replace(broker.components.context, is_as_left=False)
        counts: TimerCounts = broker.timers.counts
        self.storage = TimerStorage(context, counts)
        self.follower = TimerFollower(
            context, self.storage, counts, lambda position: self.copied >= position
        )
        self.follower.start()

    async def put(self, *due_after_ms: int) -> list[int]:
        """Store messages that are due so long after the epoch; return their positions."""
        positions = []
        for number, after_ms in enumerate(due_after_ms):
            positions.append(self.broker.store.reader.written_position)
            await send(self.broker, timer_draft(self.broker, b"%d" % number, EPOCH_MS + after_ms))
        self.copied = self.broker.store.reader.written_position
        return positions

    async def take(self, read_after_ms: int, queue_offset: int, scan_from: int = 0) -> TimerCheck:
        """Offer a progress; return the check file when it was taken."""
        end = self.broker.store.reader.written_position
        at_ms = EPOCH_MS + read_after_ms
        self.follower.offer(ReplicaProgress(at_ms, queue_offset, scan_from, end, WINDOW_MS))
        await asyncio.sleep(0.2)
        return read_check(self.broker.disk)


def run(test: Callable[[Rig], Awaitable[None]], disk: SimDisk | None = None) -> SimDisk:
    async def with_rig(broker: SimulatedBroker) -> None:
        rig = Rig(broker)
        await test(rig)
        await rig.follower.stop()

    return run_with_broker(with_rig, disk)


def test_nothing_is_taken_before_the_log_has_what_it_covers() -> None:
    async def test(rig: Rig) -> None:
        await rig.put(5_000, 6_000)
        rig.copied -= 1
        assert await rig.take(1_000, 2) == TimerCheck()
        rig.copied += 1
        await asyncio.sleep(0.2)
        assert read_check(rig.broker.disk).queue_offset == 2
        assert rig.storage.waiting == 2

    run(test)


def test_only_messages_before_the_offset_of_the_master_are_taken_in() -> None:
    async def test(rig: Rig) -> None:
        await rig.put(5_000, 6_000, 7_000)
        check = await rig.take(1_000, 2)
        assert (check.read_at_ms, check.queue_offset) == (EPOCH_MS + 1_000, 2)
        assert rig.storage.waiting == 2

    run(test)


def test_slots_before_the_time_of_the_master_are_done() -> None:
    async def test(rig: Rig) -> None:
        await rig.put(5_000, 6_000, 7_001)
        await rig.take(1_000, 3)
        check = await rig.take(6_000, 3)
        assert rig.storage.waiting == 1
        assert check.covered_at == rig.copied

    run(test)


@pytest.mark.parametrize("are_rebuilt", [False, True])
def test_slots_follow_from_the_records_if_the_clock_is_behind_that_of_the_master(
    *, are_rebuilt: bool
) -> None:
    async def test(rig: Rig) -> None:
        if not are_rebuilt:
            await rig.put(500)
            await rig.take(1_000, 1)
        await rig.put(WINDOW_MS - 10_000)  # by this clock it will wait longer than the window
        assert isinstance(rig.broker.clock, LoopClock)
        rig.broker.clock.step(-120_000)
        end = 1 if are_rebuilt else 2
        await rig.take(2_000, end)
        await rig.take(WINDOW_MS - 20_000, end)
        assert rig.storage.waiting == 1
        await rig.take(WINDOW_MS, end)
        assert rig.storage.waiting == 0

    run(test)


def test_log_is_searched_from_a_late_message_on_until_its_slot_is_done() -> None:
    async def test(rig: Rig) -> None:
        [first] = await rig.put(5_000)
        await rig.take(1_000, 1, scan_from=rig.copied)
        [late] = await rig.put(2_500)
        check = await rig.take(4_000, 2, scan_from=rig.copied)
        assert (check.scan_from, rig.storage.waiting) == (late, 2)  # it may be delivered already
        check = await rig.take(4_000, 2, scan_from=rig.copied)
        assert check.scan_from == late
        await rig.put(60_000)
        check = await rig.take(5_000, 2, scan_from=rig.copied)
        assert (check.scan_from, rig.storage.waiting) == (rig.copied, 0)
        assert first < late

    run(test)


def test_progress_of_a_master_that_is_behind_an_earlier_one_takes_nothing_back() -> None:
    async def test(rig: Rig) -> None:
        await rig.put(5_000, 9_000)
        await rig.take(1_000, 2)
        await rig.take(6_000, 2)
        await rig.put(7_000)
        check = await rig.take(4_000, 1)
        assert (check.read_at_ms, check.queue_offset) == (EPOCH_MS + 6_000, 2)
        check = await rig.take(5_000, 3)
        assert (check.read_at_ms, check.queue_offset) == (EPOCH_MS + 6_000, 3)
        assert rig.storage.waiting == 2

    run(test)


@pytest.mark.parametrize("is_earlier_version", [False, True])
def test_files_go_on_after_a_restart_or_are_rebuilt_if_an_earlier_version_wrote_them(
    is_earlier_version: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def first(rig: Rig) -> None:
        await rig.put(5_000, 6_000, 9_000)
        await rig.take(1_000, 2)

    async def second(rig: Rig) -> None:
        rig.copied = rig.broker.store.reader.written_position
        await rig.take(6_000, 3)
        assert rig.storage.waiting == (3 if is_earlier_version else 1)  # the log has no delivery

    disk = run(first)
    if is_earlier_version:
        check = read_check(disk)._replace(covered_at=None, counter=99)
        disk.write(TIMER_CHECK, 0, [encode_check(check)])
    run(second, disk)
    assert ("their slots may differ from those of the master" in caplog.text) == is_earlier_version


def test_a_master_offers_no_progress_before_its_slots_follow_from_the_records() -> None:
    async def test(broker: SimulatedBroker) -> None:
        storage = broker.timers.storage
        first = storage.replica_progress()
        assert first is not None
        assert (first.queue_offset, first.window_ms) == (0, WINDOW_MS)
        await send(broker, timer_draft(broker, b"x", broker.clock.now_ms() + 5_000))
        await asyncio.sleep(1)
        await storage.flush()
        progress = storage.replica_progress()
        assert progress is not None
        assert (progress.queue_offset, progress.window_ms) == (1, WINDOW_MS)
        files = broker.timers._files
        assert files is not None
        files.note_inexact(files.read_at_ms // 1000 + 2)
        files.is_changed = True
        await storage.flush()
        assert storage.replica_progress() is None
        await asyncio.sleep(6)
        await storage.flush()
        assert storage.replica_progress() is not None

    run_with_broker(test, is_delivering=True)


def test_progress_is_durable_only_when_the_set_has_what_it_depends_on() -> None:
    async def test(broker: SimulatedBroker) -> None:
        storage, reader = broker.timers.storage, broker.store.reader
        await send(broker, timer_draft(broker, b"x", broker.clock.now_ms() + 1_000))
        confirmed = reader.written_position
        broker.commit.confirmed_position = lambda stored: min(stored, confirmed)
        await asyncio.sleep(3)  # it is delivered, and that is not confirmed
        await storage.flush()
        assert reader.synced_position > confirmed
        before = read_check(broker.disk)
        assert (before.covered_at or 0) <= confirmed
        confirmed = reader.synced_position
        await storage.flush()
        check = read_check(broker.disk)
        assert (check.covered_at, check.queue_offset) == (confirmed, 1)
        assert check.read_at_ms > before.read_at_ms

    run_with_broker(test, is_delivering=True)


def test_timer_log_with_files_of_several_sizes_is_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    async def send_one(broker: SimulatedBroker) -> None:
        await send(broker, timer_draft(broker, b"x", broker.clock.now_ms() + 5_000))
        await asyncio.sleep(1)

    async def receive(broker: SimulatedBroker) -> None:
        await asyncio.sleep(6)
        assert [one.topic for one in broker.arrivals] == ["T"]

    disk = run_with_broker(send_one, is_delivering=True)
    disk.truncate(f"{TIMER_LOG}/{LOG_FILE_BYTES:020}", 1716)
    run_with_broker(receive, disk, is_delivering=True)
    assert "must all have one size" in caplog.text
