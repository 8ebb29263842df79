"""A replica with less than it had acknowledged is not elected before it has joined again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kourou.store.log.log_walk import PieceKind, walk_log
from kourou.store.paths import COMMITLOG, EPOCHS
from kourou.store.state.epoch_file import read_epochs, replace_epochs
from kourou.store.state.file_sizes import log_files
from kourou.store.tools.truncate import plan_truncation, truncate_log
from kourou.testing.disk import SimDisk
from tests.broker.controlling.controlled_cluster import ControlledCluster
from tests.broker.controlling.test_failover import Acknowledged, run, send, stored

SEGMENT = 64 * 1024
LOSER = 1


def last_records(disk: SimDisk, count: int) -> int:
    """Return the log position at which the last `count` records begin."""
    pieces = walk_log(disk, log_files(disk, COMMITLOG), SEGMENT)
    return [piece.position for piece in pieces if piece.kind is PieceKind.RECORD][-count]


def copy(disk: SimDisk, directory: str = "") -> dict[str, bytes]:
    """Return the contents of all files."""
    found: dict[str, bytes] = {}
    for name in disk.list(directory):
        path = f"{directory}/{name}".lstrip("/")
        try:
            found[path] = disk.read(path, 0, disk.size(path))
        except IsADirectoryError:
            found |= copy(disk, path)
    return found


def restore(files: dict[str, bytes]) -> SimDisk:
    """Return a disk with these files."""
    disk = SimDisk()
    for path, data in files.items():
        disk.make_directory(path.rpartition("/")[0])
        disk.truncate(path, len(data))
        disk.write(path, 0, [data])
    return disk


def truncated(disk: SimDisk) -> None:
    """`kourou store truncate`, of less than the mark reveals."""
    plan = plan_truncation(disk, last_records(disk, 1))
    assert plan is not None
    truncate_log(disk, plan, 1, pid=1)


def log_restored(disk: SimDisk) -> None:
    """The log's files of an earlier day."""
    position = last_records(disk, 4)
    for file in log_files(disk, COMMITLOG):
        at = max(0, position - file.start)
        disk.truncate(file.name, min(at, SEGMENT))
        disk.truncate(file.name, SEGMENT)
    disk.unlink("checkpoint")


def epochs_cut(disk: SimDisk) -> None:
    """The file of epochs, or its backup, of before the last failover."""
    newest = read_epochs(disk)
    assert len(newest) > 1
    replace_epochs(disk, newest.cut(list(newest)[-1].start))
    assert disk.exists(f"{EPOCHS}.bak")


@pytest.mark.parametrize("lose", [truncated, log_restored, epochs_cut, None])
def test_a_replica_that_lost_acknowledged_messages_waits_for_another_master(
    lose: Callable[[SimDisk], None] | None,
) -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        async with cluster.producer() as producer:
            await send(producer, 3, acknowledged)
            backup = copy(cluster.disks[LOSER])
            master = cluster.require_master()
            await cluster.kill(master)  # the next epoch
            await cluster.until(lambda: cluster.master() not in (master, None))
            await cluster.start(master)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            await send(producer, 6, acknowledged)
            await asyncio.sleep(2)  # the mark is written each second
            for index in range(2):
                await cluster.kill(index)
            if lose is None:
                cluster.disks[LOSER] = restore(backup)
                await asyncio.sleep(5)  # the controller misses both
            else:
                lose(cluster.disks[LOSER])

            await cluster.start(LOSER)
            await asyncio.sleep(15)
            assert cluster.master() is None
            await cluster.kill(LOSER)
            await cluster.start(LOSER)  # it does not forget
            await asyncio.sleep(10)
            assert cluster.master() is None

            await cluster.start(1 - LOSER)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            assert cluster.master() == 1 - LOSER
            await send(producer, 3, acknowledged)

            await asyncio.sleep(5)
            await cluster.kill(1 - LOSER)  # what has joined again may be elected
            await cluster.until(lambda: cluster.master() == LOSER)
            await send(producer, 3, acknowledged)
        assert len(acknowledged) >= 12
        assert acknowledged.items() <= stored(cluster.disks[LOSER]).items()

    run(2, test)


def test_a_replica_with_a_flipped_bit_is_not_elected_and_is_repaired_by_the_others() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        async with cluster.producer() as producer:
            await send(producer, 1, acknowledged)
            await asyncio.sleep(3)  # the checkpoint advances, and not again for ten seconds
            await send(producer, 6, acknowledged)
            await asyncio.sleep(2)  # what is durable is noted each second
            for index in range(2):
                await cluster.kill(index)
            disk = cluster.disks[LOSER]
            name = log_files(disk, COMMITLOG)[0].name
            at = last_records(disk, 4) + 100
            disk.write(name, at, [bytes([disk.read(name, at, 1)[0] ^ 1])])
            assert not acknowledged.items() <= stored(disk).items()

            await cluster.start(LOSER)
            broker = cluster.brokers[LOSER]
            assert broker is not None
            assert broker.store.recovery.damaged
            await asyncio.sleep(15)
            assert cluster.master() is None

            await cluster.start(1 - LOSER)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            assert cluster.master() == 1 - LOSER
            assert acknowledged.items() <= stored(disk).items()
            await asyncio.sleep(5)
            await cluster.kill(1 - LOSER)
            await cluster.until(lambda: cluster.master() == LOSER)

    run(2, test)
