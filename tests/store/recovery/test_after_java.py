"""Recovery of stores that Java had open before."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from kourou.errors import StoreConfigError
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.testing.disk import SimDisk
from tests.store.recovery.rig import fill, remove_queues
from tests.store.rig import CONFIG, Rig, delete_topic


def test_a_topic_that_java_deleted_and_recreated_starts_at_0() -> None:
    # Java leaves no note of the deletion: only the queue offsets in the log reveal it.
    rig = Rig()
    fill(rig, 5, 10)
    delete_topic(rig.store, "T")
    for body in (b"new", b"newer"):
        rig.put(body)
    rig.store.abandon()
    for name in ("config/kourou-store.json", "config/kourou-store.json.bak"):
        rig.disk.unlink(name)
    rig.open()

    assert rig.bodies() == [b"new", b"newer"]
    assert rig.problems() == []


def test_changes_by_java_are_not_reported_as_loss(rig: Rig) -> None:
    # Java deleted a topic while it had the store open; its clean stop leaves abort.bak.
    fill(rig, 3, 10)
    rig.put(b"deleted by Java", topic="U")
    rig.put(b"last")
    rig.store.close(0)
    remove_queues(rig.disk, "consumequeue/U")
    for directory in ("consumequeue/U/0", "consumequeue/U"):
        rig.disk.remove_directory(directory)
    rig.disk.write("abort.bak", 0, [])
    topics = b'{"topicConfigTable":{"T":{"topicName":"T"}}}'
    rig.disk.write("config/topics.json", 0, [topics])
    rig.open()

    assert rig.store.reader.queues() == {"T": [0]}
    assert not rig.disk.exists("abort.bak")


def java_store(**changes: int) -> tuple[SimDisk, StoreConfig]:
    """Return a closed store without Kourou's state file."""
    rig = Rig()
    fill(rig, 3, 10)
    rig.store.close(0)
    for name in ("config/kourou-store.json", "config/kourou-store.json.bak"):
        if rig.disk.exists(name):
            rig.disk.unlink(name)
    return rig.disk, replace(CONFIG, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"commitlog_segment_bytes": 8192},
        {"commitlog_segment_bytes": 4100},
        {"consumequeue_file_bytes": 320},
        {"consumequeue_file_bytes": 60},
    ],
)
def test_another_file_size_than_javas_is_refused(changes: dict[str, int]) -> None:
    disk, config = java_store(**changes)
    before = {name: disk.size(f"commitlog/{name}") for name in disk.list("commitlog")}
    with pytest.raises(StoreConfigError, match="created with"):
        MessageStore.open(disk, config, 0, pid=1)

    assert {name: disk.size(f"commitlog/{name}") for name in before} == before


def test_an_empty_last_segment_of_java_is_accepted() -> None:
    disk, config = java_store()
    disk.write("commitlog/00000000000000004096", 0, [])
    disk.write("abort", 0, [b"1"])
    rig = Rig(disk, config)

    assert len(rig.bodies()) == 3
    assert rig.problems() == []


def test_a_checkpoint_older_than_5_5_starts_by_time() -> None:
    rig = Rig()
    for second in range(20):
        rig.now_ms = second * 1000
        rig.put(b"x" * 900)
    rig.store.close(0)
    at_ms = rig.store.reader.store_time("T", 0, 19)
    rig.disk.write("checkpoint", 0, [struct.pack(">6q", at_ms, at_ms, 0, 0, 0, 0)])
    rig.disk.write("abort", 0, [b"1"])
    rig.open()

    assert 4 <= rig.store.recovery.records_scanned <= 8
    assert len(rig.bodies()) == 20
    assert rig.problems() == []
