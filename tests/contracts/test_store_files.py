"""A store leaves the same files on a real disk as on the simulated one."""

from __future__ import annotations

from pathlib import Path

from kourou.disk import Disk, OsDisk
from kourou.store.message_store import MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, delete_topic, draft


def commit(store: MessageStore) -> None:
    store.writer.write()
    plan = store.writer.sync_plan()
    if plan is not None:
        store.writer.run_sync(plan)
        store.writer.synced(plan)
    store.writer.dispatch(store.reader.synced_position)


def run_store(disk: Disk) -> None:
    """Send, flush, kill, tear the tail, recover, delete a topic and stop."""
    store = MessageStore.open(disk, CONFIG, 1_000, pid=7)
    for number in range(30):
        store.writer.append(draft(b"%d" % number * 300, queue_id=number % 3), 1_000 + number)
        commit(store)
        store.writer.flush(1_000 + number * 700)
    torn = store.writer.append(draft(b"torn", topic="U"), 2_000)
    commit(store)
    store.abandon()
    name = f"commitlog/{torn.physical_offset // 4096 * 4096:020d}"
    disk.write(name, torn.physical_offset % 4096 + 60, [bytes(torn.size - 60)])
    store = MessageStore.open(disk, CONFIG, 3_000, pid=7)
    assert not store.recovery.was_clean
    store.writer.append_batch([draft(b"batch", topic="V") for _ in range(3)], 3_000)
    store.writer.append(draft(b"gone", topic="W"), 3_000)
    commit(store)
    delete_topic(store, "W")
    store.close(4_000)


def files_of(disk: Disk, directory: str = "") -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name in disk.list(directory):
        path = f"{directory}/{name}" if directory else name
        if disk.list(path):
            files |= files_of(disk, path)
        elif name != "lock":
            files[path] = disk.read(path, 0, disk.size(path))
    return files


def test_both_disks_hold_the_same_files(tmp_path: Path) -> None:
    real, simulated = OsDisk(tmp_path), SimDisk()
    for disk in (real, simulated):
        run_store(disk)
        assert check_store(disk).findings == []

    assert files_of(real) == files_of(simulated)
    assert "commitlog/00000000000000004096" in files_of(real)
    real.close()
