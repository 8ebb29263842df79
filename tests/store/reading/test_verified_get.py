"""A read returns exactly the requested messages, or names the damaged one."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kourou.errors import CorruptRecordError, DamagedRecordError
from kourou.filter.tags import matches_code, parse_tags
from kourou.protocol.hashing import tags_code
from kourou.protocol.record.decode import decode_messages
from kourou.store.formats import ENTRY, ENTRY_BYTES
from kourou.store.message_store import GetRequest, GetStatus
from kourou.store.reading import queue_repair
from kourou.store.reading.get_plan import Accepts
from kourou.store.reading.verified_get import GetResult, ReadContext, get_resident, get_verified
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, Rig, delete_topic

QUEUE_FILE = "consumequeue/T/0/00000000000000000000"
LONG_FILES = replace(CONFIG, consumequeue_file_bytes=20 * 100, queue_tail_bytes_max=20 * 200)


def stored(count: int = 10, disk: SimDisk | None = None) -> Rig:
    """Return a reopened store with alternating messages of two queues."""
    rig = Rig(disk or SimDisk(), LONG_FILES)
    for number in range(count):
        rig.put(b"body-%d" % number)
        rig.put(b"other-%d" % number, queue_id=1)
    rig.reopen()
    return rig


def get(
    rig: Rig, offset: int = 0, *, skip: bool = False, accepts: Accepts | None = None
) -> GetResult:
    """Read from the offset like a broker."""
    asked = GetRequest(offset, 32, 1 << 20, accepts)
    found = rig.store.reader.get_resident("T", 0, asked)
    found = found or rig.store.reader.get("T", 0, asked, skip_damaged=skip)
    rig.store.writer.write_repaired(found.repaired)
    return found


def bodies(found: GetResult) -> list[bytes]:
    return [message.body for message in decode_messages(found.body)]


def read_all(rig: Rig, count: int = 10) -> list[bytes]:
    """Read the queue from begin to end."""
    all_bodies: list[bytes] = []
    offset = 0
    while offset < count:
        found = get(rig, offset)
        assert found.plan.next_offset > offset
        all_bodies += bodies(found)
        offset = found.plan.next_offset
    return all_bodies


def expected(*numbers: int) -> list[bytes]:
    return [b"body-%d" % number for number in numbers]


def write_entries(rig: Rig, queue_offset: int, data: bytes) -> None:
    rig.disk.write(QUEUE_FILE, queue_offset * ENTRY_BYTES, [data])


def spoil(rig: Rig, *texts: bytes) -> None:
    """Change a byte of bodies in the log's files, without the store."""
    for name in rig.disk.list("commitlog"):
        file = f"commitlog/{name}"
        content = rig.disk.read(file, 0, rig.disk.size(file))
        for text in texts:
            if text in content:
                rig.disk.write(file, content.index(text), [b"X"])


def test_valid_messages_in_memory_are_found_without_waiting() -> None:
    rig = stored()
    found = rig.store.reader.get_resident("T", 0, GetRequest(0, 32, 1 << 20, None))
    assert found is not None
    assert bodies(found) == expected(*range(10))
    assert [len(record) for record in found.records()] == [one.size for one in found.plan.expected]


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        pytest.param(4, bytes(ENTRY_BYTES), id="zeros"),
        pytest.param(0, bytes(5 * ENTRY_BYTES), id="zeros from the begin on"),
        pytest.param(7, bytes(3 * ENTRY_BYTES), id="zeros to the end"),
        pytest.param(0, bytes(10 * ENTRY_BYTES), id="nothing but zeros"),
        pytest.param(3, b"\xff" * 30, id="ones, across an entry's end"),
        pytest.param(2, ENTRY.pack(-1, 100, 0), id="before the log"),
        pytest.param(2, ENTRY.pack(1 << 40, 100, 0), id="behind the log"),
        pytest.param(2, ENTRY.pack(0, 1 << 30, 0), id="larger than a segment"),
        pytest.param(2, ENTRY.pack(0, 5, 0), id="smaller than a record"),
    ],
)
def test_corrupt_entries_are_repaired_and_written(at: int, damage: bytes) -> None:
    rig = stored()
    whole = rig.disk.read(QUEUE_FILE, 0, 10 * ENTRY_BYTES)
    write_entries(rig, at, damage)

    assert read_all(rig) == expected(*range(10))
    assert rig.disk.read(QUEUE_FILE, 0, 10 * ENTRY_BYTES) == whole
    assert not get(rig).repaired
    assert not rig.problems()


def test_an_entry_that_refers_to_another_message_does_not_return_it() -> None:
    for other in (2, 5):
        rig = stored()
        entry = rig.disk.read(QUEUE_FILE, other * ENTRY_BYTES, ENTRY_BYTES)
        write_entries(rig, 4, entry)
        assert bodies(get(rig, 4)) == expected(*range(4, 10))
    rig = stored()
    elsewhere = rig.disk.read("consumequeue/T/1/00000000000000000000", 0, ENTRY_BYTES)
    write_entries(rig, 0, elsewhere)
    assert bodies(get(rig)) == expected(*range(10))


def test_a_corrupt_tags_code_is_detected_when_the_record_is_read() -> None:
    rig = stored()
    position, size, _ = ENTRY.unpack(rig.disk.read(QUEUE_FILE, 4 * ENTRY_BYTES, ENTRY_BYTES))
    write_entries(rig, 4, ENTRY.pack(position, size, tags_code("b")))
    wants_b = parse_tags("T", "b")

    found = get(rig, accepts=lambda code: matches_code(wants_b, code))

    assert (found.plan.status, found.plan.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)
    assert [one.queue_offset for one in found.repaired] == [4]
    assert bodies(get(rig)) == expected(*range(10))


def test_a_damaged_message_is_refused_after_those_before_it_were_returned() -> None:
    rig = stored()
    spoil(rig, b"body-3", b"body-4")

    found = get(rig)
    assert bodies(found) == expected(0, 1, 2)
    assert (found.plan.next_offset, found.plan.count) == (3, 3)
    with pytest.raises(DamagedRecordError, match="message 3 of queue 0 of topic T") as raised:
        get(rig, 3)
    assert rig.disk.read(raised.value.file, raised.value.offset + 88, 6) == b"Xody-3"
    assert "checksum" in str(raised.value)
    with pytest.raises(DamagedRecordError, match="message 4 of"):
        get(rig, 4)
    assert bodies(get(rig, 5)) == expected(5, 6, 7, 8, 9)


def test_damaged_messages_are_skipped_on_request() -> None:
    rig = stored()
    spoil(rig, b"body-0", b"body-1", b"body-9")

    found = get(rig, skip=True)
    assert bodies(found) == expected(*range(2, 9))
    assert [one.queue_offset for one in found.skipped] == [0, 1]
    last = get(rig, 9, skip=True)
    assert (last.plan.count, last.plan.next_offset) == (0, 10)
    assert [one.queue_offset for one in last.skipped] == [9]


def test_a_corrupt_record_size_loses_no_later_message() -> None:
    rig = stored()
    position, size, _ = ENTRY.unpack(rig.disk.read(QUEUE_FILE, 2 * ENTRY_BYTES, ENTRY_BYTES))
    name = f"commitlog/{0:020d}"
    rig.disk.write(name, position, [(size * 3).to_bytes(4, "big")])
    write_entries(rig, 3, bytes(2 * ENTRY_BYTES))

    assert bodies(get(rig)) == expected(0, 1)
    with pytest.raises(DamagedRecordError, match="message 2 of"):
        get(rig, 2)
    assert bodies(get(rig, 3)) == expected(*range(3, 10))


def test_a_record_of_a_deleted_topic_of_the_same_name_is_not_returned() -> None:
    rig = Rig(config=LONG_FILES)
    rig.put(b"old-0")
    delete_topic(rig.store, "T")
    for number in range(3):
        rig.put(b"new-%d" % number)
    rig.reopen()
    spoil(rig, b"new-0")
    write_entries(rig, 0, bytes(ENTRY_BYTES))

    with pytest.raises(DamagedRecordError, match="message 0 of"):
        get(rig)
    assert bodies(get(rig, 1)) == [b"new-1", b"new-2"]


def test_a_missing_queue_file_is_named_with_the_remedy() -> None:
    rig = stored()
    rig.disk.unlink(QUEUE_FILE)
    with pytest.raises(CorruptRecordError, match=r"T/0/0+ at byte 40.*restart") as raised:
        get(rig, 2)
    assert not isinstance(raised.value, DamagedRecordError)
    rig.reopen()
    assert read_all(rig) == expected(*range(10))


def test_an_unreadable_record_is_one_damaged_message() -> None:
    class BadSector(SimDisk):
        bad = -1

        def read(self, name: str, offset: int, size: int) -> bytes:
            if name.startswith("commitlog") and offset <= self.bad < offset + size:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(name, offset, size)

        def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
            if name.startswith("commitlog") and offset <= self.bad < offset + size:
                return None
            return super().read_resident(name, offset, size)

    disk = BadSector()
    rig = stored(4, disk)
    disk.bad = ENTRY.unpack(disk.read(QUEUE_FILE, 2 * ENTRY_BYTES, ENTRY_BYTES))[0] + 50

    assert bodies(get(rig)) == expected(0, 1)
    with pytest.raises(DamagedRecordError, match=r"message 2.*Input/output error"):
        get(rig, 2)
    assert bodies(get(rig, 3)) == expected(3)


def test_a_segment_removed_during_a_read_hides_no_remaining_message() -> None:
    class Removing(SimDisk):
        rig: Rig | None = None

        def read(self, name: str, offset: int, size: int) -> bytes:
            if self.rig is not None and name.startswith("commitlog"):
                rig, self.rig = self.rig, None
                rig.store.expiry.remove([rig.store.expiry.hide_segment()])
            return super().read(name, offset, size)

    disk = Removing()
    rig = stored(30, disk)
    disk.rig = rig

    found = rig.store.reader.get("T", 0, GetRequest(0, 32, 1 << 20, None))

    received = bodies(found)
    assert 0 < len(received) < 30
    assert received == expected(*range(30 - len(received), 30))


def test_the_search_for_a_record_is_bounded() -> None:
    rig = stored()
    write_entries(rig, 0, bytes(10 * ENTRY_BYTES))
    store = rig.store
    context = ReadContext(
        store.files.log, store.files.queues.get("T", 0), LONG_FILES, search_bytes_max=100
    )
    with pytest.raises(DamagedRecordError, match="refers to no position in the log"):
        get_verified(context, GetRequest(0, 32, 1 << 20, None))


def test_a_read_only_store_returns_the_same_and_writes_nothing() -> None:
    rig = stored()
    write_entries(rig, 4, bytes(ENTRY_BYTES))
    rig.store.writer.set_read_only("a test")
    assert read_all(rig) == expected(*range(10))
    assert rig.disk.read(QUEUE_FILE, 4 * ENTRY_BYTES, ENTRY_BYTES) == bytes(ENTRY_BYTES)


def test_entries_of_a_deleted_topic_are_not_repaired() -> None:
    rig = stored()
    write_entries(rig, 4, bytes(ENTRY_BYTES))
    found = rig.store.reader.get("T", 0, GetRequest(4, 32, 1 << 20, None))
    delete_topic(rig.store, "T")
    rig.store.writer.write_repaired(found.repaired)
    assert found.repaired
    assert not rig.disk.exists(QUEUE_FILE)


def test_a_search_by_time_uses_the_neighbours_of_records_without_a_time() -> None:
    rig = Rig(config=LONG_FILES)
    times = []
    for number in range(20):
        rig.now_ms += 1_000
        times.append(rig.now_ms)
        rig.put(b"body-%d" % number)
    rig.reopen()
    spoil(rig, b"body-10")
    write_entries(rig, 4, bytes(2 * ENTRY_BYTES))
    for number in set(range(20)) - {4, 5, 6, 10, 11}:
        assert rig.store.reader.offset_by_time("T", 0, times[number]) == number
    for number in (4, 5, 6, 10, 11):
        assert rig.store.reader.offset_by_time("T", 0, times[number]) <= number


def test_own_entries_returns_only_entries_made_by_this_process() -> None:
    rig = stored(3)
    assert rig.store.reader.own_entries("T", 0, 0, 8) is None
    assert rig.store.reader.own_entries("T", 0, 3, 8) == ()
    assert rig.store.reader.own_entries("absent", 0, 0, 8) == ()
    appended = [rig.put(b"new-%d" % number) for number in range(2)]
    for _ in range(2):
        entries = rig.store.reader.own_entries("T", 0, 3, 8) or ()
        assert [one.physical_offset for one in entries] == [one.physical_offset for one in appended]
        rig.tick()
    entry = rig.store.reader.entry_if_resident("T", 0, 3)
    assert entry is not None
    assert entry.physical_offset == appended[0].physical_offset
    assert rig.store.reader.entry_if_resident("T", 0, 5) is None
    assert rig.store.reader.entry_if_resident("absent", 0, 0) is None


def test_records_written_long_ago_are_verified_even_if_this_process_wrote_them() -> None:
    rig = Rig(config=LONG_FILES)
    for number in range(5):
        rig.put(b"body-%d" % number)
    log, queue = rig.store.files.log, rig.store.files.queues.get("T", 0)
    asked = GetRequest(0, 32, 1 << 20, None)
    trusted = get_resident(ReadContext(log, queue, LONG_FILES), asked)
    assert trusted is not None
    assert not trusted.plan.expected
    compared = get_resident(ReadContext(log, queue, LONG_FILES, believed_bytes=100), asked)
    assert compared is not None
    assert len(compared.plan.expected) == 5
    spoil(rig, b"body-0")
    assert get_resident(ReadContext(log, queue, LONG_FILES, believed_bytes=100), asked) is None


def test_a_zeroed_queue_is_repaired_in_parts_of_one_write_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_repair, "RUN_ENTRIES_MAX", 5)
    rig = stored(20)
    write_entries(rig, 0, bytes(20 * ENTRY_BYTES))
    found = rig.store.reader.get("T", 0, GetRequest(8, 1, 1 << 20, None))
    assert [one.queue_offset for one in found.repaired] == list(range(3, 14))

    writes: list[str] = []
    rig.disk.on_operation = lambda operation, name: (
        writes.append(name) if operation == "write" else None
    )
    rig.store.writer.write_repaired(found.repaired)
    rig.disk.on_operation = None
    assert writes == [QUEUE_FILE]
    assert read_all(rig, 20) == expected(*range(20))
    assert rig.problems() == []
