"""Java's batch queues: reads give Java's results, and queues are rebuilt byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kourou.protocol.record.decode import decode_messages
from kourou.store.message_store import GetRequest, MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.golden import Golden, draft_of, load

TOPIC = "StoreBatchCq"
FILE = f"batchconsumequeue/{TOPIC}/0/00000000000000000000"


@pytest.fixture
def golden() -> Golden:
    return load("clean")


@pytest.fixture
def expected(golden: Golden) -> dict[str, Any]:
    expected: dict[str, Any] = golden.manifest["queues"][TOPIC]["0"]
    return expected


@pytest.fixture
def store(golden: Golden) -> Iterator[MessageStore]:
    store = MessageStore.open(golden.disk, golden.config, 0, pid=1)
    yield store
    store.close(0)
    assert check_store(golden.disk).findings == []


def test_a_queue_has_the_same_offsets_and_entries(
    store: MessageStore, expected: dict[str, Any]
) -> None:
    bounds = (store.reader.min_offset(TOPIC, 0), store.reader.max_offset(TOPIC, 0))
    assert bounds == (expected["min_offset"], expected["max_offset"])
    assert store.reader.next_queue_offset(TOPIC, 0) == expected["max_offset"]
    for base, position, size, code, count in expected["units"]:
        for offset in range(base, base + count):
            assert store.reader.entry(TOPIC, 0, offset) == (position, size, code)
    assert store.reader.entry(TOPIC, 0, expected["max_offset"]) is None


def test_a_read_has_the_same_outcome(store: MessageStore, expected: dict[str, Any]) -> None:
    get = expected["get_message"]
    plan = store.reader.get(
        TOPIC, 0, GetRequest(get["offset"], get["max_messages"], 1 << 20, None)
    ).plan

    assert (plan.status.name, plan.next_offset) == (get["status"], get["next_begin_offset"])
    assert (plan.min_offset, plan.max_offset) == (get["min_offset"], get["max_offset"])
    assert [position for position, _ in plan.ranges] == get["physical_offsets"]
    assert plan.count == get["max_offset"]


def test_every_message_of_every_batch_is_read(store: MessageStore) -> None:
    found = store.reader.get(TOPIC, 0, GetRequest(0, 32, 1 << 20, None))

    assert [message.queue_offset for message in decode_messages(found.body)] == list(range(20))


@pytest.mark.parametrize("is_clean", [True, False])
def test_queue_rebuilt_from_the_log_equals_javas(golden: Golden, *, is_clean: bool) -> None:
    disk = golden.disk
    for file in golden.files:
        if file.startswith(("consumequeue/", "batchconsumequeue/")):
            disk.unlink(file)
    if not is_clean:
        disk.write("abort", 0, [b"1234"])

    store = MessageStore.open(disk, golden.config, 0, pid=1)
    store.close(0)

    assert disk.read(FILE, 0, 4601) == golden.files[FILE]
    assert check_store(disk).findings == []


def test_the_same_batches_produce_the_same_files(golden: Golden) -> None:
    log_bytes = golden.log_bytes()
    disk = SimDisk()
    store = MessageStore.open(disk, golden.config, 0, pid=1)
    store.writer.set_kind_lookup(TOPIC.__eq__)
    for expected in golden.manifest["records"]:
        at, size = expected["physical_offset"], expected["size"]
        store.writer.append(draft_of(log_bytes[at : at + size]), expected["store_timestamp"])
    store.close(0)

    segments = [name for name in golden.files if name.startswith("commitlog/")]
    for file in (FILE, *segments[: len(disk.list("commitlog"))]):
        assert disk.read(file, 0, len(golden.files[file]) + 1) == golden.files[file]
    assert check_store(disk).findings == []


def test_java_store_accepts_further_batches(store: MessageStore, golden: Golden) -> None:
    expected = next(one for one in golden.manifest["records"] if one["topic"] == TOPIC)
    record = store.reader.read_record(expected["physical_offset"])
    assert record is not None
    appended = store.writer.append(draft_of(record), 0)
    store.writer.write()
    store.writer.dispatch(store.reader.written_position)

    assert (appended.queue_offset, appended.count) == (20, 5)
    stored = store.reader.read_record(appended.physical_offset)
    assert stored is not None
    assert [message.queue_offset for message in decode_messages(stored)] == list(range(20, 25))


def test_another_size_of_batch_files_is_refused(golden: Golden) -> None:
    config = replace(golden.config, batch_queue_file_bytes=9200)
    with pytest.raises(Exception, match="4600 bytes, but the configured file size is"):
        MessageStore.open(golden.disk, config, 0, pid=1)
