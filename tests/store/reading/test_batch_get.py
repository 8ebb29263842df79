"""Reads of batch queues return whole, valid batches within the limits."""

from __future__ import annotations

import json

import pytest

from kourou.errors import DamagedRecordError, InvalidMessageError
from kourou.model.properties import encode_properties
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.record.encode import RecordDraft
from kourou.store.formats import BATCH_ENTRY, BATCH_ENTRY_BYTES
from kourou.store.message_store import AppendedRecord
from kourou.store.reading.get_plan import Accepts, GetStatus
from kourou.store.reading.verified_get import GetRequest, GetResult
from kourou.testing.disk import SimDisk
from tests.store.rig import Rig, draft

BATCH_FLAGS = 0x40 | 0x80
TOPICS = {"topicConfigTable": {"T": {"topicName": "T", "attributes": {"queue.type": "BatchCQ"}}}}
QUEUE_FILE = "batchconsumequeue/T/0/00000000000000000000"


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.disk.write("config/topics.json", 0, [json.dumps(TOPICS).encode()])
    rig.disk.sync("config/topics.json")
    rig.disk.sync_directory("config")
    rig.reopen()
    return rig


def batch(count: int, start: int = 0, topic: str = "T", **properties: str) -> RecordDraft:
    """Return a batch of messages whose bodies are numbers from `start`."""
    items = [BatchItem(0, b"%d" % n, b"TAGS\x01a\x02") for n in range(start, start + count)]
    text = {"UNIQ_KEY": "u", "INNER_NUM": str(count)} | properties
    made = draft(encode_batch(items), topic=topic, sys_flag=BATCH_FLAGS)
    made.properties = encode_properties(text)
    return made


def put(rig: Rig, *counts: int) -> list[AppendedRecord]:
    """Store batches whose messages contain their offsets."""
    appended = []
    for count in counts:
        start = rig.store.reader.next_queue_offset("T", 0)
        appended.append(rig.store.writer.append(batch(count, start), rig.now_ms))
        rig.commit()
    return appended


def get(
    rig: Rig,
    offset: int,
    max_messages: int = 32,
    *,
    accepts: Accepts | None = None,
    skip_damaged: bool = False,
) -> GetResult:
    asked = GetRequest(offset, max_messages, 1 << 20, accepts)
    return rig.store.reader.get("T", 0, asked, skip_damaged=skip_damaged)


def numbers(found: GetResult) -> list[int]:
    messages = decode_messages(found.body)
    assert [int(message.body) for message in messages] == [m.queue_offset for m in messages]
    return [message.queue_offset for message in messages]


def test_a_batch_has_as_many_offsets_as_messages(rig: Rig) -> None:
    first, second = put(rig, 3, 4)
    assert (first.queue_offset, first.count) == (0, 3)
    assert (second.queue_offset, second.count) == (3, 4)
    assert rig.store.reader.max_offset("T", 0) == 7
    assert rig.bodies() == [b"%d" % n for n in range(7)]
    assert rig.problems() == []


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (2, 0), (3, 3), (6, 3)])
def test_a_reader_inside_a_batch_gets_the_batch(rig: Rig, offset: int, first: int) -> None:
    put(rig, 3, 4)
    found = get(rig, offset)
    assert numbers(found) == list(range(first, 7))
    assert found.plan.next_offset == 7


def test_a_batch_counts_as_its_messages_and_the_first_is_always_returned(rig: Rig) -> None:
    put(rig, 5, 3, 3, 1)
    assert [get(rig, 0, n).plan.count for n in (1, 7, 8, 11, 12)] == [5, 5, 8, 11, 12]
    assert get(rig, 0, 8).plan.next_offset == 8


@pytest.mark.parametrize(
    ("offset", "status"),
    [(7, GetStatus.OFFSET_OVERFLOW_ONE), (8, GetStatus.OFFSET_OVERFLOW_BADLY)],
)
def test_an_offset_outside_the_queue_is_reported(rig: Rig, offset: int, status: GetStatus) -> None:
    put(rig, 7)
    assert get(rig, offset).plan.status is status


def test_batches_in_memory_are_found_without_waiting(rig: Rig) -> None:
    put(rig, 3, 4)
    found = rig.store.reader.get_resident("T", 0, GetRequest(4, 32, 1 << 20, None))
    assert found is not None
    assert numbers(found) == [3, 4, 5, 6]


def test_a_tag_filter_passes_batches_without_tags(rig: Rig) -> None:
    put(rig, 3)
    rig.store.writer.append(draft(b"3"), rig.now_ms)  # a single message, with tag a
    rig.commit()
    assert numbers(get(rig, 0, accepts=lambda code: code == 1)) == [0, 1, 2]
    assert numbers(get(rig, 0, accepts=lambda code: code == ord("a"))) == [0, 1, 2, 3]


def test_a_search_by_time_finds_the_batch(rig: Rig) -> None:
    times = []
    for count in (3, 4, 2):
        rig.now_ms += 1000
        times.append(rig.now_ms)
        put(rig, count)
    assert [rig.store.reader.offset_by_time("T", 0, at) for at in (0, *times, times[-1] + 1)] == [
        0, 0, 3, 7, 9,
    ]  # fmt: skip
    assert rig.store.reader.store_time("T", 0, 5) == times[1]


def test_a_batch_for_a_simple_queue_is_refused_and_leaves_nothing(rig: Rig) -> None:
    with pytest.raises(InvalidMessageError, match="U has no batch queues"):
        rig.store.writer.append(batch(2, topic="U"), rig.now_ms)
    with pytest.raises(InvalidMessageError, match="part of a batch"):
        rig.store.writer.append_batch([batch(2)], rig.now_ms)
    for count in ("", "0", "32768", "x", "٣", "000002", "1" * 5_000):
        with pytest.raises(InvalidMessageError, match="an inner batch has 1 to"):
            rig.store.writer.append(batch(2, INNER_NUM=count), rig.now_ms)
    assert rig.store.writer.appended_position == 0


# Stops, kills and crashes ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["reopen", "kill", "crash"])
def test_batches_survive_every_kind_of_stop(rig: Rig, way: str) -> None:
    put(rig, 3, 4)
    rig.tick()
    put(rig, 2, 5, 1, 1, 6)
    getattr(rig, way)()
    assert rig.store.reader.max_offset("T", 0) == 22
    put(rig, 2)
    assert rig.bodies() == [b"%d" % n for n in range(24)]
    assert rig.problems() == []


@pytest.mark.parametrize("seed", range(8))
def test_batches_after_a_power_cut_have_no_hole(seed: int) -> None:
    rig = Rig(SimDisk(seed))
    rig.store.writer.set_kind_lookup("T".__eq__)
    put(rig, *range(1, 4 + seed))
    rig.tick()
    put(rig, 3)
    expected = rig.bodies()
    for count in (1, 2):
        rig.store.writer.append(batch(count), rig.now_ms)
    rig.store.writer.write()
    rig.crash()
    assert rig.bodies()[: len(expected)] == expected
    assert rig.problems() == []


def test_an_unwritten_batch_frees_its_offsets(rig: Rig) -> None:
    put(rig, 3)
    rig.store.writer.append(batch(4, 3), rig.now_ms)
    rig.kill()
    assert rig.store.reader.next_queue_offset("T", 0) == 3


def test_a_topic_is_deleted_with_its_batch_queues(rig: Rig) -> None:
    put(rig, 3)
    rig.tick()
    deletion = rig.store.writer.begin_deletion("T")
    assert deletion is not None
    deletion.note()
    rig.kill()
    assert rig.disk.list("batchconsumequeue") == []
    assert rig.store.reader.max_offset("T", 0) == 0
    assert rig.problems() == []


# Damage ------------------------------------------------------------------------------------------


def with_damaged_batch(rig: Rig) -> AppendedRecord:
    """Store three batches and flip a bit of the second; return the second."""
    appended = put(rig, 3, 4, 2)[1]
    rig.reopen()
    name = f"commitlog/{0:020d}"
    at = appended.physical_offset + 100
    rig.disk.write(name, at, [bytes([rig.disk.read(name, at, 1)[0] ^ 1])])
    return appended


def test_a_damaged_batch_is_refused_by_name(rig: Rig) -> None:
    damaged = with_damaged_batch(rig)
    assert rig.store.reader.get_resident("T", 0, GetRequest(0, 32, 1 << 20, None)) is None
    found = get(rig, 0)
    assert numbers(found) == [0, 1, 2]
    assert found.plan.next_offset == 3
    with pytest.raises(DamagedRecordError) as error:
        get(rig, 3)
    assert error.value.queue_offset == damaged.queue_offset


def test_a_damaged_batch_is_skipped_on_request(rig: Rig) -> None:
    with_damaged_batch(rig)
    found = get(rig, 3, skip_damaged=True)
    assert numbers(found) == [7, 8]
    assert [damage.queue_offset for damage in found.skipped] == [3]


@pytest.mark.parametrize(
    "value", [(0, 0, 0, 0, 0, 0), (99_999, 50, 0, 0, 3, 4), (0, 9, 0, 0, 3, 4)]
)
def test_a_corrupt_entry_returns_no_other_batch(
    rig: Rig, value: tuple[int, int, int, int, int, int]
) -> None:
    put(rig, 3, 4, 2)
    rig.reopen()
    rig.disk.write(QUEUE_FILE, BATCH_ENTRY_BYTES, [BATCH_ENTRY.pack(*value, -1, 0)])
    assert numbers(get(rig, 0)) == [0, 1, 2]
    with pytest.raises(DamagedRecordError):
        get(rig, 3)
