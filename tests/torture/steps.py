"""Random steps of a store on a simulated disk, with a power loss at any operation.

The steps include failed writes, full disks, failed syncs, kills and clean stops. Afterwards the
synced messages must be stored, in order and without missing offsets, and no other ones.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kourou.errors import StoreFullError
from kourou.store.message_store import AppendedRecord, MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, SEGMENT_BYTES, draft
from tests.torture.stored import stored_messages

QUEUES = [("T", 0), ("T", 1), ("U", 0)]


class PowerLostError(Exception):
    """Raised by the disk at the operation at which power is lost."""


@dataclass
class Run:
    """A store, the messages appended to it, and the number of them that must be durable."""

    disk: SimDisk
    appended: list[tuple[tuple[str, int], bytes]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    places: list[AppendedRecord] = field(default_factory=list)
    durable: int = 0
    now_ms: int = 1_000

    def open(self) -> None:
        self.store = MessageStore.open(self.disk, CONFIG, self.now_ms, pid=1)

    def do(self, step: tuple[str, int]) -> None:
        name, number = step
        getattr(self, name)(number)

    def append(self, number: int) -> None:
        topic, queue_id = QUEUES[number % 3]
        body = b"%06d" % len(self.appended) + b"x" * (number * 37 % 1500)
        note = {"TAGS": "a", "NOTE": "y" * (number * 53 % 1300 + 1)}
        message = draft(body, topic=topic, queue_id=queue_id, properties=note)
        received = self.store.writer.append(message, self.now_ms)
        self.note(body, received)

    def note(self, body: bytes, received: AppendedRecord) -> None:
        """Record an appended message."""
        self.appended.append(((received.topic, received.queue_id), body))
        self.ends.append(received.end)
        self.places.append(received)

    def write(self, number: int) -> None:
        self.store.writer.write()
        if number % 2:
            self.store.writer.fill_ahead()

    def sync(self, number: int) -> None:
        self.write(number)
        plans = [self.store.writer.sync_plan(), self.store.writer.queue_sync_plan()]
        for plan in reversed(plans) if number % 4 == 3 else plans:
            if plan is not None:
                self.store.writer.run_sync(plan)
                self.store.writer.synced(plan)
                self.durable = sum(end <= plan.position for end in self.ends)

    def show_synced(self, _: int) -> None:
        self.store.writer.dispatch(self.store.reader.synced_position)

    def show_written(self, _: int) -> None:
        self.store.writer.dispatch(self.store.reader.written_position)

    def flush(self, _: int) -> None:
        self.now_ms += 1_000
        self.store.writer.flush(self.now_ms)

    def restart(self, _: int) -> None:
        self.store.close(self.now_ms)
        self.durable = len(self.appended)
        self.open()

    def kill(self, _: int) -> None:
        """Kill the process: written messages stay, unless a sync had failed."""
        sure = self.durable
        if self.store.writer.read_only_reason is None:
            sure = sum(end <= self.store.reader.written_position for end in self.ends)
        self.store.abandon()
        self.open()
        self.forget(self.there())
        assert len(self.appended) >= sure
        self.durable = len(self.appended)

    def fill_disk(self, number: int) -> None:
        """Make a write fail with ENOSPC; its messages are refused."""
        written = self.store.reader.written_position
        self.append(number)
        self.disk.fail_after(0, OSError(errno.ENOSPC, "full"), ("write", "truncate"))
        with pytest.raises(StoreFullError):
            self.store.writer.write()
        self.forget(sum(end <= written for end in self.ends))

    def fail_sync(self, number: int) -> None:
        """Make a sync fail: the store becomes read-only, and the broker is killed and restarted."""
        self.append(number)
        self.store.writer.write()
        plan = self.store.writer.sync_plan()
        assert plan is not None
        self.disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
        with pytest.raises(OSError, match="broken"):
            self.store.writer.run_sync(plan)
        self.store.writer.set_read_only("a sync failed")
        self.kill(0)

    def there(self) -> int:
        """Return the number of messages that the log still contains."""
        return sum(end <= self.store.reader.written_position for end in self.ends)

    def forget(self, count: int) -> None:
        del self.appended[count:]
        del self.ends[count:]
        del self.places[count:]

    def lose_power(self, operations: int) -> None:
        """Make the disk raise after `operations` operations."""
        left = [operations]

        def count_down(_operation: str, _name: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise PowerLostError

        self.disk.on_operation = count_down

    def start_after_power_loss(self, recovery_crashes: list[int]) -> None:
        self.disk.on_operation = None
        for operations in recovery_crashes:
            self.disk.crash()
            self.lose_power(operations)
            try:
                self.open()
            except PowerLostError:
                continue
            finally:
                self.disk.on_operation = None
            self.store.abandon()
        self.disk.crash()
        self.open()

    def assert_synced_stored(self) -> None:
        """Compare the stored messages with the expected ones; then append more and compare."""
        assert self.there() >= self.durable, "a durable message is lost"
        self.forget(self.there())
        end = self.ends[-1] if self.ends else 0
        behind_blank = -(-end // SEGMENT_BYTES) * SEGMENT_BYTES
        assert self.store.reader.written_position in (end, behind_blank), (
            "a record that was never appended"
        )
        self.compare()
        self.store.close(self.now_ms)
        assert check_store(self.disk).findings == []
        self.open()
        for number in range(8):
            self.append(number)
        self.sync(0)
        self.show_synced(0)
        self.compare()
        self.store.close(self.now_ms)
        assert check_store(self.disk).findings == []

    def compare(self) -> None:
        for topic, queue_id in QUEUES:
            expected = [body for queue, body in self.appended if queue == (topic, queue_id)]
            assert self.store.reader.max_offset(topic, queue_id) == len(expected)
            assert self.bodies(topic, queue_id) == expected

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        messages = stored_messages(self.store, topic, queue_id)
        for message in messages:
            assert set(message.properties.get("NOTE", "")) == {"y"}, "a torn record"
        return [message.body for message in messages]


STEPS = [
    *["append"] * 6, "write", *["sync"] * 2, *["show_synced"] * 2, "show_written",
    *["flush"] * 2, "restart", "kill", "fill_disk", "fail_sync",
]  # fmt: skip


def assert_survives_power_loss(
    seed: int, kind: type[Run] = Run, names: Sequence[str] = STEPS, count: int = 80
) -> None:
    """Run random steps until a power loss, recover with further crashes, and compare.

    Args:
        seed: of all choices.
        kind: class of the run.
        names: names of its steps; repeated names are more frequent.
        count: limit of the number of steps.

    Raises:
        AssertionError: a durable message is lost, or there is one that was not appended.
    """
    dice = random.Random(seed)
    steps = [(dice.choice(names), dice.randrange(61)) for _ in range(dice.randrange(count))]
    run = kind(SimDisk(seed))
    run.lose_power(dice.randrange(600 * count // 80))
    try:
        run.open()
        for step in steps:
            run.do(step)
    except PowerLostError:
        pass
    run.start_after_power_loss([dice.randrange(80) for _ in range(dice.choice((0, 0, 1, 2)))])
    run.assert_synced_stored()
