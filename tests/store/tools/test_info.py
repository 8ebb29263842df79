"""The summary of a store is correct, although only the ends of its files are read."""

from __future__ import annotations

import pytest

from kourou.store.tools.info import store_info
from kourou.testing.disk import SimDisk
from tests.store import golden
from tests.store.rig import SEGMENT_BYTES, Rig


def test_info_summarizes_a_store() -> None:
    rig = Rig()
    ends = []
    for number in range(30):
        rig.now_ms += 10
        ends.append(rig.put(b"x" * 300, topic="TU"[number % 2]).end)
    rig.store.close(rig.now_ms)
    info = store_info(rig.disk)

    assert info.sizes.segment_bytes == SEGMENT_BYTES
    assert (info.log_first, info.log_end) == (0, ends[-1])
    assert (info.first_at_ms, info.last_at_ms) == (1_000_010, rig.now_ms)
    assert (info.last_run.was_clean, info.last_run.was_kourou, info.is_kourous) == (True,) * 3
    assert [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in info.queues] == [
        ("T", 0, 0, 15),
        ("U", 0, 0, 15),
    ]


def test_expired_messages_do_not_count() -> None:
    rig = Rig()
    for _ in range(30):
        rig.put(b"x" * 300)
    rig.store.close(rig.now_ms)
    rig.disk.unlink("commitlog/00000000000000000000")
    info = store_info(rig.disk)

    (queue,) = info.queues
    assert info.log_first == SEGMENT_BYTES
    assert 0 < queue.min_offset < queue.max_offset == 30


def test_info_reports_a_killed_store() -> None:
    rig = Rig()
    rig.put()
    rig.store.abandon()

    assert not store_info(rig.disk).last_run.was_clean


def test_info_of_an_empty_directory_is_empty() -> None:
    info = store_info(SimDisk())

    assert (info.log_end, info.first_at_ms, info.queues, info.is_kourous) == (0, None, [], False)


@pytest.mark.parametrize("name", ["clean", "expired", "lmq"])
def test_info_of_java_stores_matches_their_manifests(name: str) -> None:
    recorded = golden.load(name)
    info = store_info(recorded.disk)
    log = recorded.manifest["commit_log"]

    assert (info.log_first, info.log_end) == (log["min_offset"], log["max_offset"])
    assert not info.is_kourous
    reported = {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in info.queues}
    for topic, queues in recorded.manifest["queues"].items():
        for queue_id, queue in queues.items():
            if queue["max_offset"]:
                expected = (queue["min_offset"], queue["max_offset"])
                assert reported[topic, int(queue_id)] == expected, (topic, queue_id)
