"""Recovery of queues with missing, surplus or damaged entries."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from kourou.store.message_store import GetRequest
from tests.store.recovery.rig import FIRST_SEGMENT, fill, remove_queues
from tests.store.rig import CONFIG, Rig, delete_topic


def test_all_queues_are_rebuilt_from_the_log(rig: Rig) -> None:
    bodies = fill(rig)
    rig.put(b"other", topic="U", queue_id=3)
    rig.store.close(0)
    remove_queues(rig.disk)
    rig.open()

    assert rig.bodies() == bodies
    assert rig.bodies("U", 3) == [b"other"]


@pytest.mark.parametrize("stop", ["close", "abandon"])
def test_one_lost_queue_is_rebuilt(rig: Rig, stop: str) -> None:
    bodies = fill(rig)
    for _ in range(3):
        rig.put(b"other", topic="U")
        rig.tick()
    rig.put(b"last", topic="U")
    rig.store.close(0) if stop == "close" else rig.store.abandon()
    remove_queues(rig.disk, "consumequeue/T" if stop == "close" else "consumequeue/U")
    rig.open()

    assert rig.bodies() == bodies
    assert rig.bodies("U") == [b"other"] * 3 + [b"last"]


@pytest.mark.parametrize("file", [0, 1, 2])
def test_a_queue_that_lost_a_file_is_rebuilt(rig: Rig, file: int) -> None:
    bodies = fill(rig)
    rig.store.close(0)
    names = rig.disk.list("consumequeue/T/0")
    assert len(names) == 3
    rig.disk.unlink(f"consumequeue/T/0/{names[file]}")
    rig.open()

    assert rig.bodies() == bodies


@pytest.mark.parametrize("size", [0, 10, 100])
def test_a_queue_with_a_short_file_is_rebuilt(rig: Rig, size: int) -> None:
    bodies = fill(rig)
    rig.store.close(0)
    rig.disk.truncate("consumequeue/T/0/00000000000000000160", size)
    rig.open()

    assert rig.bodies() == bodies
    assert rig.disk.size("consumequeue/T/0/00000000000000000160") == 160


def test_a_queue_entry_whose_record_was_lost_is_removed(rig: Rig) -> None:
    rig.put(b"kept")
    rig.put(b"kept too", queue_id=1)
    lost = rig.append(b"lost")
    rig.store.writer.write()
    rig.store.writer.dispatch(rig.store.reader.written_position)  # like with ASYNC_FLUSH
    rig.tick()
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, lost.physical_offset, [bytes(lost.size)])
    rig.open()

    assert rig.bodies() == [b"kept"]
    assert rig.bodies(queue_id=1) == [b"kept too"]


def test_a_queue_whose_records_were_all_lost_is_removed(rig: Rig) -> None:
    rig.put(b"kept")
    lost = rig.append(b"lost", topic="U")
    rig.store.writer.write()
    rig.store.writer.dispatch(rig.store.reader.written_position)
    rig.tick()
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, lost.physical_offset, [bytes(lost.size)])
    rig.open()

    assert rig.store.reader.queues() == {"T": [0]}
    assert rig.put(b"again", topic="U").queue_offset == 0


def test_queues_whose_older_messages_expired_keep_their_offsets(rig: Rig) -> None:
    bodies = fill(rig)
    rig.put(b"only once", topic="U")
    rig.store.close(0)
    rig.disk.unlink(FIRST_SEGMENT)
    rig.open()
    first = rig.store.reader.min_offset("T", 0)
    assert 0 < first < 8
    assert rig.bodies() == bodies[first:]

    rig.store.close(0)
    remove_queues(rig.disk)
    rig.open()
    assert rig.store.reader.min_offset("T", 0) == first
    assert rig.bodies() == bodies[first:]
    assert rig.store.reader.get("T", 0, GetRequest(0, 1, 100, None)).plan.next_offset == first


def test_an_empty_queue_keeps_its_next_offset(rig: Rig) -> None:
    rig.put(b"old", topic="U")
    fill(rig)
    rig.store.close(0)
    rig.disk.unlink(FIRST_SEGMENT)
    rig.open()

    assert rig.store.reader.min_offset("U", 0) == rig.store.reader.max_offset("U", 0) == 1
    assert rig.put(b"new", topic="U").queue_offset == 1


def test_files_rebuilt_and_removed_by_one_recovery_are_not_missed() -> None:
    # Recovery rebuilds the old topic's queue until it reaches the new topic's first record.
    rig = Rig()
    for _ in range(20):
        rig.put()
    delete_topic(rig.store, "T")
    rig.put(b"new")
    rig.store.abandon()
    for name in ("config/kourou-store.json", "config/kourou-store.json.bak"):
        rig.disk.unlink(name)
    rig.open()

    rig.reopen()
    assert rig.store.recovery.was_clean
    assert rig.bodies() == [b"new"]
    assert rig.problems() == []


def test_a_record_with_an_implausible_queue_offset_gets_no_entry() -> None:
    rig = Rig(config=replace(CONFIG, append_property_crc=False))
    rig.put(b"one")
    bad = rig.put(b"two")
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, bad.physical_offset + 20, [struct.pack(">q", 1 << 40)])
    rig.open()

    assert rig.bodies() == [b"one"]
    rig.store.abandon()


@pytest.mark.parametrize("byte", [0, 3, 8], ids=["offset", "low part of the offset", "size"])
def test_a_damaged_last_entry_below_the_scan_is_rebuilt(rig: Rig, byte: int) -> None:
    rig.put(b"the only one", queue_id=1)
    bodies = fill(rig)
    for _ in range(20):
        rig.tick()
        rig.put(b"more")
        bodies.append(b"more")
    rig.store.abandon()
    name = f"consumequeue/T/1/{0:020d}"
    entry = bytearray(rig.disk.read(name, 0, 20))
    entry[byte] ^= 0x80
    rig.disk.write(name, 0, [bytes(entry)])
    rig.disk.sync(name)
    rig.open()

    assert rig.bodies(queue_id=1) == [b"the only one"]
    assert rig.bodies() == bodies
