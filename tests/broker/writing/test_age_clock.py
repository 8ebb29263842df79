"""The clock for ages is not fooled by a wall clock that jumps while the broker is down."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import cast

from kourou.broker.writing.age_clock import FILE_NAME, AgeClock, ClockFile, parse_age_clock
from kourou.store.state.config_file import ConfigFile
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker

HOUR_MS = 3_600_000
AHEAD_MS = 73 * HOUR_MS

Life = Callable[[SimulatedBroker], Awaitable[None]]


async def live(disk: SimDisk, life: Life, ahead_ms: int = 0, boot_id: str | None = "b") -> None:
    """Run a broker whose wall clock is ahead, and kill it."""
    broker = SimulatedBroker(disk, later_ms=ahead_ms, boot_id=boot_id)
    await life(broker)
    await broker.stop()


def age_ahead_ms(broker: SimulatedBroker) -> int:
    """Return how far the clock for ages is ahead of the correct time."""
    correct_ms = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
    return broker.components.age_clock.now_ms() - correct_ms


async def store_one(broker: SimulatedBroker) -> None:
    await broker.store_messages([broker.draft()])


def step(broker: SimulatedBroker, ms: int) -> None:
    cast(LoopClock, broker.clock).step(ms)


def saved_text(disk: SimDisk) -> bytes:
    return disk.read(FILE_NAME, 0, disk.size(FILE_NAME))


def saved(disk: SimDisk) -> ClockFile:
    return parse_age_clock(saved_text(disk))


def test_a_restart_ignores_a_jump_before_the_last_message_was_stored() -> None:
    async def main() -> None:
        disk, found = SimDisk(), []

        async def jumping(broker: SimulatedBroker) -> None:
            step(broker, AHEAD_MS)
            await store_one(broker)  # its store time is wrong

        async def restarted(broker: SimulatedBroker) -> None:
            found.append(age_ahead_ms(broker))

        await live(disk, jumping)
        await asyncio.sleep(60)
        await live(disk, restarted, AHEAD_MS)
        await live(disk, restarted)

        assert found == [0, 0]

    run_virtual(main())


def test_after_a_start_of_the_machine_the_last_message_counts() -> None:
    async def main() -> None:
        disk, found = SimDisk(), []

        async def restarted(broker: SimulatedBroker) -> None:
            found.append(age_ahead_ms(broker))

        await live(disk, store_one)
        await asyncio.sleep(60)
        await live(disk, restarted, AHEAD_MS, boot_id="c")

        assert -61_000 < found[0] <= -60_000

    run_virtual(main())


def test_a_jump_that_lasted_stays_followed_after_a_restart() -> None:
    async def main() -> None:
        disk, found = SimDisk(), []

        async def jumping(broker: SimulatedBroker) -> None:
            step(broker, AHEAD_MS)
            for _ in range(7):
                await broker.components.age_clock.check_wall_clock()
                await asyncio.sleep(600)
            found.append(age_ahead_ms(broker))

        async def restarted(broker: SimulatedBroker) -> None:
            found.append(age_ahead_ms(broker))

        await live(disk, jumping)
        await live(disk, restarted, AHEAD_MS)

        assert found == [AHEAD_MS, AHEAD_MS]

    run_virtual(main())


def test_the_file_is_written_at_the_first_start_and_only_after_changes() -> None:
    async def main() -> None:
        disk, reads = SimDisk(), []

        async def life(broker: SimulatedBroker) -> None:
            reads.append(saved_text(disk))
            step(broker, 900)  # time synchronization
            await broker.components.age_clock.check_wall_clock()
            reads.append(saved_text(disk))

        await live(disk, life)
        await live(disk, life)

        assert saved(disk) == ClockFile(0, "b", EPOCH_MS)
        assert len(set(reads)) == 1

    run_virtual(main())


def test_a_failed_write_at_the_start_is_repeated() -> None:
    async def main() -> None:
        disk = SimDisk()

        async def life(broker: SimulatedBroker) -> None:
            file = ConfigFile(disk, FILE_NAME, parse_age_clock, restores=True)
            context, offload = broker.components.context, broker.runtime.offload
            disk.fail_after(0, OSError(errno.ENOSPC, "No space left on device"))
            clock = AgeClock(
                context.live_config, context.store, broker.clock, file, offload, "after"
            )
            assert not disk.exists(FILE_NAME)
            await clock.check_wall_clock()

        await live(disk, life, boot_id=None)

        assert saved(disk).boot == "after"

    run_virtual(main())
