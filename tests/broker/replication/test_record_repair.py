"""A damaged record is repaired from another replica, and from nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.replication.record_repair import checked_record
from kourou.errors import DamagedRecordError, MalformedMessageError
from kourou.store.message_store import GetRequest
from kourou.store.paths import COMMITLOG, file_name
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.broker.replication.replica_rig import KIB, ReplicaRig, send, until
from tests.store.rig import Rig


def run(test: Callable[[ReplicaRig], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with ReplicaRig(2, **options) as rig:
            await rig.begin()
            await test(rig)

    run_virtual(main())


def flip(disk: SimDisk, position: int) -> None:
    """Flip a bit of the log."""
    name = f"{COMMITLOG}/{file_name(position - position % (64 * KIB))}"
    byte = disk.read(name, position % (64 * KIB), 1)[0]
    disk.write(name, position % (64 * KIB), [bytes([byte ^ 4])])
    disk.sync(name)


async def positions(rig: ReplicaRig, count: int = 6) -> list[tuple[int, int, int]]:
    """Send messages; return queue id, queue offset and log position of each."""
    found = []
    async with rig.producer() as producer:
        for _ in range(count):
            receipt = await send(producer, b"x" * 900)
            at = int(receipt.offset_msg_id[-16:], 16)
            found.append((receipt.queue.queue_id, receipt.queue_offset, at))
    await rig.caught_up()
    return found


def test_a_slave_repairs_what_its_recovery_finds() -> None:
    async def test(rig: ReplicaRig) -> None:
        sent = await positions(rig)
        await asyncio.sleep(1)  # the checkpoint, by which a record counts as damaged
        await rig.kill(2)
        for _, _, at in sent[1:3]:  # neighbours
            flip(rig.disks[2], at + 500)
        slave = await rig.start(2)
        assert slave.store.recovery.damaged

        await until(lambda: rig.log(2) == rig.log(1))
        replica = slave.components.replica
        assert replica is not None
        await until(lambda: not replica.acknowledged.damaged)

    run(test)


def test_a_read_repairs_the_record_that_it_finds_damaged() -> None:
    async def test(rig: ReplicaRig) -> None:
        queue_id, offset, at = (await positions(rig))[2]
        whole = rig.log(2)
        await rig.stop(1)
        flip(rig.disks[1], at + 500)
        await rig.elect(1)  # after a clean stop, recovery does not read it
        await rig.in_sync(1, 2)
        broker, slave = rig.brokers[1], rig.brokers[2].components.slave
        assert slave is not None
        await until(lambda: not slave.unconfirmed_reason())
        assert rig.log(1)[: len(whole)] != whole

        asked = GetRequest(offset, 1, 64 * KIB, None)
        found = await broker.components.reads.read("T", queue_id, asked)

        assert b"x" * 900 in found.body
        assert rig.log(1)[: len(whole)] == whole
        assert broker.components.repair.repaired_count == 1

    run(test)


def test_a_record_that_no_replica_has_stays_damaged_until_one_has_it() -> None:
    async def test(rig: ReplicaRig) -> None:
        queue_id, offset, at = (await positions(rig))[2]
        await rig.stop(1)
        await rig.stop(2)
        flip(rig.disks[1], at + 500)
        rig.controller.elect(1)
        broker = await rig.start(1)
        asked = GetRequest(offset, 1, 64 * KIB, None)

        for _ in range(2):
            with pytest.raises(DamagedRecordError):
                await broker.components.reads.read("T", queue_id, asked)
        replica = broker.components.replica
        assert replica is not None
        assert list(replica.acknowledged.damaged) == [at]

        await rig.start(2)
        await asyncio.sleep(8)
        assert replica.acknowledged.damaged == {}
        assert b"x" * 900 in (await broker.components.reads.read("T", queue_id, asked)).body

    run(test)


def test_only_the_record_of_the_position_is_taken() -> None:
    rig = Rig()
    first, second = rig.put(b"one"), rig.put(b"two")
    record = rig.store.reader.read_record(second.physical_offset)
    assert record is not None

    assert checked_record(record, second.physical_offset, len(record)) == record
    with pytest.raises(MalformedMessageError, match="asked for"):
        checked_record(record, first.physical_offset, len(record))
    with pytest.raises(MalformedMessageError, match="are damaged"):
        checked_record(record, second.physical_offset, len(record) - 1)
    for at in (4, len(record) // 2, len(record) - 3):
        flipped = bytes([*record[:at], record[at] ^ 1, *record[at + 1 :]])
        with pytest.raises(MalformedMessageError):
            checked_record(flipped, second.physical_offset, len(record))
