"""Queue locks survive a restart of the broker."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.consuming.queue_locks import EXPIRY_MS
from kourou.broker.consuming.saved_locks import FILE_NAME, RENEWALS_MS, SavedLocks, parse_locks
from kourou.model.queue import MessageQueue
from kourou.store.state.config_file import ConfigFile
from kourou.testing.clock import ManualClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))


class Machine:
    """A disk, and two clocks that continue while a broker is down.

    Attributes:
        steady_ms: clock by which locks expire; it has another zero in each process of the broker.
    """

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.steady_ms = 5_000

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.steady_ms += ms

    def opened(self, boot_id: str | None = None) -> SavedLocks:
        """Load the locks as a starting broker does; with a boot id, its steady clock runs on."""
        if boot_id is None:
            self.steady_ms += 7_777_777
        file = ConfigFile(self.disk, FILE_NAME, parse_locks, restores=True)
        offload = sim_runtime(0).offload
        return SavedLocks(file, offload, self.clock, lambda: self.steady_ms, boot_id)

    def lock(self, saved: SavedLocks, client_id: str, group: str = "g") -> bool:
        """Request the lock of queue A; return whether it is granted."""
        return saved.locks.lock(group, client_id, [A], self.steady_ms) == [A]


def test_locks_survive_a_kill() -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()
        saved.locks.lock("g", "c1", [A], machine.steady_ms)
        saved.locks.lock("g", "c2", [B], machine.steady_ms)
        saved.locks.lock("h", "c2", [A], machine.steady_ms)
        saved.locks.unlock("h", "c2", [A])
        await saved.persist()
        machine.disk.crash()

        locks = machine.opened().locks
        assert locks.lock("g", "c2", [A, B], machine.steady_ms) == [B]
        assert locks.holder("g", A, machine.steady_ms) == "c1"
        assert locks.lock("h", "c1", [A], machine.steady_ms) == [A]

    run_virtual(main())


def test_a_dead_members_lock_expires_over_repeated_broker_restarts() -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()
        assert machine.lock(saved, "dead")
        for _ in range(6):
            await saved.persist()
            machine.disk.crash()
            machine.pass_time(10_000)
            saved = machine.opened()
            assert not machine.lock(saved, "c2")
        machine.pass_time(1)
        assert machine.lock(saved, "c2")

    run_virtual(main())


@pytest.mark.parametrize("seconds", range(60, 120))
def test_a_lock_outlasts_its_holders_reliance_on_it_over_any_kill(
    seconds: int,
) -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()
        believed_until_ms = 0
        for second in range(seconds):
            if second % 5 == 0:
                await saved.persist()
            if second % 20 == 1:
                assert machine.lock(saved, "c1")
                believed_until_ms = machine.steady_ms + 30_000
            machine.pass_time(1000)
        believed_ms = believed_until_ms - machine.steady_ms
        machine.disk.crash()

        again = machine.opened()
        machine.pass_time(believed_ms)
        assert not machine.lock(again, "c2")

    run_virtual(main())


def test_locks_expire_while_a_broker_is_down() -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()
        assert machine.lock(saved, "c1")
        await saved.persist()
        machine.pass_time(EXPIRY_MS + 1)
        again = machine.opened()
        assert len(again.locks) == 0
        assert machine.lock(again, "c2")

    run_virtual(main())


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000, 73 * 3_600_000])
def test_a_jump_of_the_wall_clock_during_a_restart_does_not_change_locks(jump_ms: int) -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened("boot 1")
        assert machine.lock(saved, "c1")
        await saved.persist()
        machine.disk.crash()
        machine.clock.advance(jump_ms)
        machine.pass_time(10_000)

        again = machine.opened("boot 1")
        machine.pass_time(EXPIRY_MS - 10_000)
        assert not machine.lock(again, "c2")
        machine.pass_time(1)
        assert machine.lock(again, "c2")

    run_virtual(main())


def test_after_a_start_of_the_machine_the_wall_clock_counts() -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened("boot 1")
        assert machine.lock(saved, "c1")
        await saved.persist()
        machine.pass_time(10_000)
        machine.steady_ms = 3

        again = machine.opened("boot 2")
        machine.pass_time(EXPIRY_MS - 10_000)
        assert not machine.lock(again, "c2")
        machine.pass_time(1)
        assert machine.lock(again, "c2")

    run_virtual(main())


def test_a_clock_set_back_does_not_extend_locks() -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()
        assert machine.lock(saved, "c1")
        await saved.persist()
        machine.clock.advance(-3_600_000)
        again = machine.opened()
        machine.pass_time(EXPIRY_MS)
        assert not machine.lock(again, "c2")
        machine.pass_time(1)
        assert machine.lock(again, "c2")

    run_virtual(main())


def test_new_holders_are_saved_at_once_and_renewals_at_intervals() -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()

        async def is_written() -> bool:
            if machine.disk.exists(FILE_NAME):
                machine.disk.unlink(FILE_NAME)
            await saved.persist()
            return machine.disk.exists(FILE_NAME)

        assert not await is_written()
        assert machine.lock(saved, "c1")
        assert await is_written()
        machine.pass_time(RENEWALS_MS - 1)
        assert machine.lock(saved, "c1")
        assert not await is_written()
        machine.pass_time(1)
        assert await is_written()
        machine.pass_time(RENEWALS_MS)
        assert not await is_written()  # no renewals
        saved.locks.expire(machine.steady_ms + EXPIRY_MS)
        assert await is_written()

    run_virtual(main())


def test_an_unreadable_file_loses_the_locks_but_not_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()
        assert machine.lock(saved, "c1")
        await saved.persist()
        for name in (FILE_NAME, f"{FILE_NAME}.bak"):
            ConfigFile(machine.disk, name).save(b'{"locks":3}')
        again = machine.opened()
        assert machine.lock(again, "c2")
        await again.persist()
        assert machine.opened().locks.holder("g", A, machine.steady_ms) == "c2"

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    assert "queue_locks.forgotten" in caplog.text


@given(
    asked=st.lists(
        st.tuples(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)), max_size=9
    )
)
def test_any_client_names_are_saved_and_loaded(asked: list[tuple[str, str, str]]) -> None:
    async def main() -> None:
        machine = Machine()
        saved = machine.opened()
        for group, client_id, topic in asked:
            queue = MessageQueue(topic, "broker-a", 0)
            saved.locks.lock(group, client_id, [queue], machine.steady_ms)
        await saved.persist()
        again = machine.opened()
        assert again.locks.groups() == saved.locks.groups()
        for group in again.locks.groups():
            held, before = (
                sorted((queue, client_id) for queue, client_id, _ in one.locks.holders(group))
                for one in (again, saved)
            )
            assert held == before

    run_virtual(main())
