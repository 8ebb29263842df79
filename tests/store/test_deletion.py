"""After a failure or crash during a deletion, the topic is whole or completely removed."""

from __future__ import annotations

import errno

import pytest

from kourou.errors import StoreError
from kourou.store.deletion import TopicDeletion
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import Rig, delete_topic, draft

BROKEN = OSError(errno.EIO, "Input/output error")
QUEUES = 3
OLD_BODIES = [b"%d" % number for number in range(20)]
"""Each queue has three files of eight entries."""


class PowerLostError(Exception):
    """A simulated crash, raised by the disk."""


def store_with_two_topics(disk: SimDisk) -> Rig:
    """Return a store with two topics; the queues of one have files and tails."""
    rig = Rig(disk)
    for body in OLD_BODIES:
        for queue_id in range(QUEUES):
            rig.put(body, queue_id=queue_id)
        rig.put(body, topic="U")
        rig.tick()
    rig.put(b"in the tail", topic="U")
    return rig


def begin_deletion(rig: Rig) -> TopicDeletion:
    deletion = rig.store.writer.begin_deletion("T")
    assert deletion is not None
    return deletion


def operations_of_a_deletion() -> int:
    rig = store_with_two_topics(SimDisk())
    before = rig.disk.operations
    delete_topic(rig.store, "T")
    return rig.disk.operations - before


def delete_until(rig: Rig, operations: int, error: Exception) -> None:
    """Delete the topic, with a crash after the given number of disk operations."""
    left = [operations]

    def count_down(_operation: str, _name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error

    rig.disk.on_operation = count_down
    try:
        with pytest.raises(type(error)):
            delete_topic(rig.store, "T")
    finally:
        rig.disk.on_operation = None


def check_topic_is_whole_or_removed(rig: Rig) -> bool:
    """Assert that the topic is whole or completely removed; tell whether it exists."""
    assert rig.bodies("U") == [*OLD_BODIES, b"in the tail"]
    is_there = "T" in rig.store.reader.queues()
    if is_there:
        assert [rig.bodies("T", queue_id) for queue_id in range(QUEUES)] == [OLD_BODIES] * QUEUES
    else:
        assert rig.disk.list("consumequeue/T") == []
        assert "T" not in rig.disk.list("consumequeue")
    return is_there


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_each_operation_leaves_the_whole_topic_or_none_of_it(
    seed: int, *, is_power_lost: bool
) -> None:
    was_there = []
    for crash_at in range(operations_of_a_deletion()):
        rig = store_with_two_topics(SimDisk(seed * 10_007 + crash_at))
        delete_until(rig, crash_at, PowerLostError())
        if is_power_lost:
            rig.crash()
        else:
            rig.kill()
        was_there.append(check_topic_is_whole_or_removed(rig))
        rig.crash()
        assert check_topic_is_whole_or_removed(rig) == was_there[-1], (
            "a second start must not change the result"
        )
        if was_there[-1]:
            delete_topic(rig.store, "T")
        new = [rig.put(b"new", queue_id=queue_id).queue_offset for queue_id in range(QUEUES)]
        assert new == [0] * QUEUES
        for restart in (rig.crash, rig.reopen, rig.kill):
            restart()
            assert [rig.bodies("T", queue_id) for queue_id in range(QUEUES)] == [[b"new"]] * QUEUES
        assert rig.problems() == []
    assert was_there[0]
    assert not was_there[-1]


@pytest.mark.parametrize("seed", range(3))
def test_after_a_failure_the_topic_is_refused_until_it_is_deleted_again(seed: int) -> None:
    for fail_at in range(operations_of_a_deletion()):
        rig = store_with_two_topics(SimDisk(seed * 10_007 + fail_at))
        delete_until(rig, fail_at, BROKEN)

        with pytest.raises(StoreError, match=r"T is being deleted; .* delete it again or restart"):
            rig.append()
        assert rig.put(b"in the tail", topic="V").queue_offset == 0
        delete_topic(rig.store, "T")
        assert not check_topic_is_whole_or_removed(rig)
        assert rig.put(b"new").queue_offset == 0
        rig.crash()
        assert rig.bodies() == [b"new"]
        assert rig.problems() == []


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_after_a_failure_leaves_the_whole_topic_or_none_of_it(seed: int) -> None:
    for fail_at in range(operations_of_a_deletion()):
        rig = store_with_two_topics(SimDisk(seed * 10_007 + fail_at))
        delete_until(rig, fail_at, BROKEN)
        (rig.reopen, rig.kill, rig.crash)[(seed + fail_at) % 3]()

        is_there = check_topic_is_whole_or_removed(rig)
        assert rig.put(b"new").queue_offset == (len(OLD_BODIES) if is_there else 0)
        assert rig.problems() == []


def test_readers_see_the_topic_until_its_deletion_is_noted() -> None:
    rig = store_with_two_topics(SimDisk())
    deletion = begin_deletion(rig)
    deletion.note()
    assert rig.bodies() == OLD_BODIES
    deletion.forget()
    assert rig.bodies() == []
    assert rig.store.reader.queues() == {"U": [0]}


def test_a_refused_batch_for_a_topic_in_deletion_leaves_nothing_in_the_log() -> None:
    rig = store_with_two_topics(SimDisk())
    begin_deletion(rig)
    end = rig.store.writer.appended_position

    with pytest.raises(StoreError, match="being deleted"):
        rig.store.writer.append_batch([draft(topic="U"), draft(topic="T")], rig.now_ms)

    assert rig.store.writer.appended_position == end
    assert rig.put(b"next", topic="U").queue_offset == len(OLD_BODIES) + 1


def test_unexpected_files_in_the_topic_directory_are_removed() -> None:
    rig = store_with_two_topics(SimDisk())
    rig.disk.write("consumequeue/T/note.txt", 0, [b"?"])
    rig.disk.make_directory("consumequeue/T/empty")
    delete_topic(rig.store, "T")

    assert rig.disk.list("consumequeue") == ["U"]


def test_queue_files_without_entries_are_removed_at_start() -> None:
    # The first file was removed, and no page of the second had reached the device.
    rig = store_with_two_topics(SimDisk())
    begin_deletion(rig).note()
    rig.store.abandon()
    rig.disk.unlink("consumequeue/T/0/00000000000000000000")
    for name in rig.disk.list("consumequeue/T/0"):
        rig.disk.truncate(f"consumequeue/T/0/{name}", 0)
        rig.disk.truncate(f"consumequeue/T/0/{name}", rig.config.consumequeue_file_bytes)
    rig.open()

    assert not check_topic_is_whole_or_removed(rig)
    assert rig.put(b"new").queue_offset == 0
    assert rig.problems() == []


def test_recreated_topic_keeps_its_queues_when_an_old_queue_reappears() -> None:
    rig = store_with_two_topics(SimDisk())
    old = {
        name: rig.disk.read(f"consumequeue/T/0/{name}", 0, 160)
        for name in rig.disk.list("consumequeue/T/0")
    }
    delete_topic(rig.store, "T")
    rig.put(b"new", queue_id=1)
    rig.tick()
    rig.store.abandon()
    rig.disk.make_directory("consumequeue/T/0")
    for name, data in old.items():
        rig.disk.write(f"consumequeue/T/0/{name}", 0, [data])
    rig.open()

    assert rig.bodies("T", 0) == []
    assert rig.bodies("T", 1) == [b"new"]
    assert rig.problems() == []
    assert check_store(rig.disk).findings == []
