"""A flush of many queues runs in short parts that complete all tails present at its start."""

from __future__ import annotations

import pytest

from kourou.store.queues import queue_tails
from kourou.store.state.checkpoint import load_checkpoint
from tests.store.rig import Rig

PART = 4


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Return a store of ten queues with files; one flush writes four of them."""
    rig = Rig()
    put_each(rig)
    while not rig.store.writer.flush(rig.now_ms):
        pass
    monkeypatch.setattr(queue_tails, "FILES_PER_FLUSH", PART)
    return rig


def put_each(rig: Rig) -> None:
    for queue_id in range(10):
        rig.append(queue_id=queue_id)
    rig.commit()


def writes(rig: Rig) -> list[int]:
    """Flush to the end of a round under load; return how many files each part wrote."""
    counts = []
    is_done = False
    while not is_done:
        names: set[str] = set()

        def watch(operation: str, name: str, names: set[str] = names) -> None:
            if operation == "write" and name.startswith("consumequeue/"):
                names.add(name)

        rig.disk.on_operation = watch
        is_done = rig.store.writer.flush(rig.now_ms)
        rig.disk.on_operation = None
        counts.append(len(names))
        put_each(rig)
    return counts


def test_each_flush_writes_few_files_and_a_round_ends_under_steady_load(rig: Rig) -> None:
    put_each(rig)
    assert writes(rig) == [4, 4, 2]
    assert rig.problems() == []


def test_messages_stored_during_a_round_survive_a_crash(rig: Rig) -> None:
    rig.now_ms += 1_000
    writes(rig)
    for _ in range(20):
        rig.now_ms += 1_000
        writes(rig)
        rig.commit()
    assert load_checkpoint(rig.disk).queues_offset > 0
    bodies = [len(rig.bodies(queue_id=queue_id)) for queue_id in range(10)]

    rig.crash()
    assert [len(rig.bodies(queue_id=queue_id)) for queue_id in range(10)] == bodies
    assert rig.problems() == []


def test_topic_deleted_during_a_round_is_not_flushed(rig: Rig) -> None:
    put_each(rig)
    assert not rig.store.writer.flush(rig.now_ms)
    deletion = rig.store.writer.begin_deletion("T")
    assert deletion is not None
    deletion.note()
    deletion.forget()
    deletion.remove_files()
    deletion.allow()

    assert rig.store.writer.flush(rig.now_ms)
    assert rig.store.reader.queues() == {}
    assert rig.problems() == []
