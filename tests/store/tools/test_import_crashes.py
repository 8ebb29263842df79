"""After a power loss during an import, its first messages are stored and can be consumed."""

from __future__ import annotations

import pytest

from kourou.protocol.topic_table import decode_topic_config_table
from kourou.store.log.log_walk import LogPiece
from kourou.store.paths import TOPICS
from kourou.store.state.config_file import ConfigFile
from kourou.store.tools import import_messages as tool
from kourou.store.tools.check import check_store
from kourou.store.tools.export import Row, Selection, export_messages
from kourou.store.tools.import_messages import import_messages
from kourou.testing.disk import SimDisk
from tests.store.rig import Rig, draft
from tests.torture.steps import PowerLostError


def rows_to_import() -> list[Row]:
    """Return 24 rows of two topics, in turn for each queue."""
    rig = Rig()
    for number in range(24):
        one = draft(b"%d" % number + b"x" * 300, topic="AB"[number % 2], queue_id=number // 8)
        rig.store.writer.append(one, rig.now_ms + number)
    rig.commit()
    found = export_messages(rig.disk, Selection())
    return [row for row in found if not isinstance(row, LogPiece)]


ROWS = rows_to_import()


@pytest.fixture(autouse=True)
def _small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "_WRITE_BYTES", 1_200)


def crash_in_import(disk: SimDisk, operations: int) -> bool:
    """Import, and lose power after `operations` operations; return whether that happened."""
    left = [operations]

    def count_down(_operation: str, _name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PowerLostError

    disk.on_operation = count_down
    try:
        import_messages(disk, ROWS, 5, pid=1)
    except PowerLostError:
        return True
    finally:
        disk.on_operation = None
    return False


def queues_known(disk: SimDisk) -> dict[str, int]:
    data = ConfigFile(disk, TOPICS, decode_topic_config_table).load()
    if data is None:
        return {}
    topics = decode_topic_config_table(data).topics
    return {name: topic.read_queue_nums for name, topic in topics.items()}


def test_a_crash_leaves_the_first_messages_readable() -> None:
    operations, seen = 0, set()
    while True:
        disk = SimDisk(operations)
        rig = Rig(disk)  # an existing store, whose messages must survive
        rig.put(b"before", topic="A")
        rig.store.close(rig.now_ms)
        if not crash_in_import(disk, operations):
            break
        rig.crash()
        known = queues_known(disk)
        bodies = {(topic, queue): rig.bodies(topic, queue) for topic in "AB" for queue in range(3)}
        stored = sum(map(len, bodies.values()))
        expected: dict[tuple[str, int], list[bytes]] = {key: [] for key in bodies}
        expected["A", 0].append(b"before")
        for row in ROWS[: stored - 1]:
            expected[row["topic"], row["queue_id"]].append(row["body"])

        assert bodies == expected
        del bodies["A", 0]  # a topic that was not registered
        assert all(queue < known[topic] for (topic, queue), some in bodies.items() if some)
        assert rig.problems() == []
        seen.add(stored)
        operations += 3
    assert len(seen) >= 5, "power was lost at several operations"
    assert check_store(disk).findings == []
