"""Java's stores have the same contents here as in Java, and the same messages the same bytes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import pytest

from kourou.model.msgid import decode_offset_msg_id
from kourou.protocol.record.encode import encode_record, record_size
from kourou.protocol.record.read import read_record
from kourou.store.log.commitlog import CommitLog
from kourou.store.message_store import GetRequest, MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.golden import FOLDER, NAMES, Golden, draft_of, load


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load(request.param)


@pytest.fixture
def store(golden: Golden) -> Iterator[MessageStore]:
    store = MessageStore.open(golden.disk, golden.config, 0, pid=1)
    yield store
    store.close(0)
    assert check_store(golden.disk).findings == []


def simple_queues(golden: Golden) -> list[tuple[str, int, dict[str, Any]]]:
    """Return topic, queue id and manifest entry of each queue that this store supports."""
    return [
        (topic, int(queue_id), reported)
        for topic, queues in golden.manifest["queues"].items()
        for queue_id, reported in queues.items()
        if reported["type"] == "SimpleCQ"
    ]


def test_the_same_queues_are_found(golden: Golden, store: MessageStore) -> None:
    found = {(topic, str(id_)) for topic, ids in store.reader.queues().items() for id_ in ids}

    assert found == {(t, id_) for t, ids in golden.manifest["queues"].items() for id_ in ids}


def test_the_log_ends_at_the_same_position_as_in_java(golden: Golden, store: MessageStore) -> None:
    assert store.reader.written_position == golden.manifest["commit_log"]["max_offset"]
    assert store.recovery.was_clean is not golden.manifest["abort_file_before_opening"]


def test_each_queue_has_the_same_offsets_and_entries(golden: Golden, store: MessageStore) -> None:
    for topic, id_, reported in simple_queues(golden):
        bounds = (store.reader.min_offset(topic, id_), store.reader.max_offset(topic, id_))
        assert bounds == (reported["min_offset"], reported["max_offset"])
        entries = [store.reader.entry(topic, id_, unit[0]) for unit in reported["units"]]
        assert entries == [tuple(unit[1:4]) for unit in reported["units"]]


def test_a_read_has_the_same_outcome(golden: Golden, store: MessageStore) -> None:
    for topic, id_, reported in simple_queues(golden):
        get = reported["get_message"]
        asked = GetRequest(get["offset"], get["max_messages"], 1 << 20, None)
        plan, data, *_ = store.reader.get(topic, id_, asked)
        assert plan.status.name == get["status"]
        assert plan.next_offset == get["next_begin_offset"]
        assert (plan.min_offset, plan.max_offset) == (get["min_offset"], get["max_offset"])
        assert record_positions(data) == get["physical_offsets"]


def record_positions(data: bytes) -> list[int]:
    places, at = [], 0
    while at < len(data):
        header = read_record(data, at, check_crc=True)
        places.append(header.physical_offset)
        at += header.total_size
    return places


@pytest.mark.parametrize("boundary", ["lower", "upper"])
def test_a_search_by_time_has_the_same_result(
    golden: Golden, store: MessageStore, boundary: str
) -> None:
    for topic, id_, reported in simple_queues(golden):
        by_time = reported["by_time"]
        assert (
            store.reader.store_time(topic, id_, reported["min_offset"])
            == by_time["earliest_store_time"]
        )
        for time, expected in (
            (by_time["time"], by_time[boundary]),
            (0, by_time[f"{boundary}_at_0"]),
            (1 << 62, by_time[f"{boundary}_at_max"]),
        ):
            received = store.reader.offset_by_time(topic, id_, time, upper=boundary == "upper")
            assert received == expected


def test_each_record_is_found_by_its_position(golden: Golden, store: MessageStore) -> None:
    for reported in golden.manifest["records"]:
        record = store.reader.read_record(reported["physical_offset"])
        assert record is not None
        header = read_record(record, check_crc=True)
        assert header.total_size == reported["size"]
        assert (header.topic, header.queue_id) == (reported["topic"], reported["queue"])
        assert header.queue_offset == reported["queue_offset"]


def test_killed_java_brokers_store_has_every_acknowledged_message() -> None:
    golden = load("killed")
    store = MessageStore.open(golden.disk, golden.config, 0, pid=1)

    lines = gzip.decompress((FOLDER / "killed.acknowledged.txt.gz").read_bytes()).decode()
    for line in lines.splitlines():
        topic, queue_id, queue_offset, msg_id, _ = line.split()
        entry = store.reader.entry(topic, int(queue_id), int(queue_offset))
        assert entry is not None
        assert entry.physical_offset == decode_offset_msg_id(msg_id)[1]
    store.close(0)


@pytest.mark.parametrize("name", ["clean", "lmq", "killed"])
def test_queues_rebuilt_from_the_log_equal_javas(name: str) -> None:
    golden = load(name)
    disk = golden.disk
    queue_files = [file for file in golden.files if file.startswith("consumequeue/")]
    for file in queue_files:
        disk.unlink(file)

    store = MessageStore.open(disk, golden.config, 0, pid=1)
    store.close(0)

    for file in queue_files:
        assert disk.read(file, 0, len(golden.files[file]) + 1) == golden.files[file], file


@pytest.mark.parametrize("name", ["clean", "lmq", "killed"])
def test_the_same_messages_produce_the_same_log_bytes(name: str) -> None:
    golden = load(name)
    log_bytes = golden.log_bytes()
    disk = SimDisk()
    disk.make_directory("commitlog")
    log = CommitLog(disk, golden.config.commitlog_segment_bytes)
    log.start_at(0)
    for reported in golden.manifest["records"]:
        at, size = reported["physical_offset"], reported["size"]
        draft = draft_of(log_bytes[at : at + size])
        place = log.position_for(record_size(draft))
        assert place == at, "the log rolls at the same position as Java's"
        log.add(
            place,
            encode_record(draft, reported["queue_offset"], place, reported["store_timestamp"]),
        )
    log.write()

    segment_bytes = golden.config.commitlog_segment_bytes
    written = b"".join(
        disk.read(f"commitlog/{n}", 0, segment_bytes) for n in disk.list("commitlog")
    )
    assert written[: len(log_bytes)] == log_bytes


def test_the_same_messages_produce_the_same_files() -> None:
    golden = load("killed")
    log_bytes = golden.log_bytes()
    disk = SimDisk()
    store = MessageStore.open(disk, golden.config, 0, pid=1)
    for reported in golden.manifest["records"]:
        at, size = reported["physical_offset"], reported["size"]
        store.writer.append(draft_of(log_bytes[at : at + size]), reported["store_timestamp"])
    store.close(0)

    for file, data in golden.files.items():
        is_spare = file.endswith("/00000000000000655360")  # Java creates the next segment ahead
        if file.startswith(("commitlog/", "consumequeue/")) and not is_spare:
            assert disk.read(file, 0, len(data) + 1) == data, file


def test_java_store_accepts_further_messages(golden: Golden, store: MessageStore) -> None:
    topic, id_, reported = simple_queues(golden)[-1]
    record = store.reader.read_record(reported["units"][-1][1])
    assert record is not None
    draft = draft_of(record)
    draft.topic, draft.queue_id = topic.encode(), id_

    appended = store.writer.append(draft, 0)

    assert appended.queue_offset == reported["max_offset"]
    assert appended.physical_offset >= golden.manifest["commit_log"]["max_offset"]
    assert appended.store_at_ms >= max(r["store_timestamp"] for r in golden.manifest["records"])
