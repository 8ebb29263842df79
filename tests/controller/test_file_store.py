"""State of a single controller: durable, verified, locked."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from kourou.controller.file_store import FILE_NAME, FileStore
from kourou.controller.state_store import Member
from kourou.disk import Disk
from kourou.errors import ControllerStateError, StoreLockedError, WriteInDoubtError
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import call_directly
from tests.controller_sets import NAME, broker_set

MEMBER = Member("n0", "h:1")


def opened(disk: Disk, lease_ms: int = 3000) -> FileStore:
    store = FileStore(disk, call_directly, lease_ms)
    store.open()
    return store


async def write_epochs(disk: Disk, count: int, acknowledged: list[int]) -> None:
    """Write a set `count` times, each time with the next epoch."""
    store, version = opened(disk), 0
    await store.campaign(MEMBER)
    for epoch in range(1, count + 1):
        result = await store.write(NAME, broker_set(1, epoch=epoch), version)
        assert result.stored is not None
        version = result.stored.version
        acknowledged.append(epoch)
    await store.close()


def epoch_of(disk: Disk) -> int:
    async def read() -> int:
        store = opened(disk)
        term = await store.campaign(MEMBER)
        await store.close()
        return term.sets[NAME].broker_set.master_epoch if term.sets else 0

    return asyncio.run(read())


@pytest.mark.parametrize("seed", range(30))
def test_acknowledged_write_survives_a_power_cut(seed: int) -> None:
    disk = SimDisk(seed)
    acknowledged = [0]
    disk.fail_after(6 + seed, OSError("power cut"))
    with suppress(WriteInDoubtError):
        asyncio.run(write_epochs(disk, 9, acknowledged))
    disk.crash()

    assert epoch_of(disk) - acknowledged[-1] in (0, 1)


@pytest.mark.parametrize("at", range(0, 300, 7))
def test_flipped_byte_is_refused(at: int) -> None:
    disk = SimDisk()
    asyncio.run(write_epochs(disk, 1, []))
    size = disk.size(FILE_NAME)
    byte = disk.read(FILE_NAME, at % size, 1)[0]
    disk.write(FILE_NAME, at % size, [bytes([byte ^ 4])])

    with pytest.raises(ControllerStateError, match=r"controller\.json is damaged"):
        opened(disk)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"leaseMs":1,"sets":[]}'])
def test_file_without_a_checksum_is_refused(text: bytes) -> None:
    disk = SimDisk()
    disk.write(FILE_NAME, 0, [text])

    with pytest.raises(ControllerStateError):
        opened(disk)


def test_second_controller_on_the_directory_is_refused() -> None:
    disk = SimDisk()
    store = opened(disk)

    with pytest.raises(StoreLockedError, match="another controller"):
        opened(disk)
    asyncio.run(store.close())
    opened(disk)


def test_next_start_waits_for_the_longest_lease_ever_confirmed() -> None:
    async def lease(disk: Disk, own_ms: int) -> int:
        store = opened(disk, own_ms)
        term = await store.campaign(MEMBER)
        await store.close()
        return term.lease_ms

    disk = SimDisk()
    assert asyncio.run(lease(disk, 3000)) == 3000
    assert asyncio.run(lease(disk, 9000)) == 9000
    assert asyncio.run(lease(disk, 3000)) == 9000
