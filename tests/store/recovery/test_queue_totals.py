"""A start detects missing queue files and corrupt first entries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kourou.disk import Disk
from kourou.protocol.record.decode import decode_messages
from kourou.store.config import StoreConfig
from kourou.store.formats import ENTRY
from kourou.store.message_store import GetRequest
from tests.store.rig import CONFIG, Rig, delete_topic

LONG_FILES = replace(CONFIG, consumequeue_file_bytes=20 * 64)


def with_idle_queue(count: int, config: StoreConfig = CONFIG) -> Rig:
    """Return a store with a queue idle for so long that recovery does not scan its records."""
    rig = Rig(config=config)
    for number in range(count):
        rig.put(b"%d" % number, topic="Quiet")
    store_more(rig)
    return rig


def store_more(rig: Rig) -> None:
    for _ in range(20):
        rig.put(b"x" * 600)
        rig.tick()
    for _ in range(5):
        rig.commit()
        rig.tick()
        rig.put()


def remove_tree(disk: Disk, directory: str) -> None:
    for name in disk.list(directory):
        disk.unlink(f"{directory}/{name}")
    disk.remove_directory(directory)


@pytest.mark.parametrize("count", [3, 11, 20])
@pytest.mark.parametrize("ends", ["kill", "crash", "reopen"])
def test_an_idle_queue_without_its_last_file_is_rebuilt(ends: str, count: int) -> None:
    rig = with_idle_queue(count)
    assert getattr(rig, ends)().recovery.scanned_from > 0
    rig.store.abandon() if ends != "reopen" else rig.store.close(rig.now_ms)
    rig.disk.unlink(f"consumequeue/Quiet/0/{rig.disk.list('consumequeue/Quiet/0')[-1]}")
    rig.open()

    assert rig.bodies("Quiet") == [b"%d" % number for number in range(count)]
    assert rig.append(topic="Quiet").queue_offset == count
    assert rig.problems() == []


def test_a_queue_without_its_directory_is_rebuilt() -> None:
    rig = with_idle_queue(3)
    rig.store.abandon()
    remove_tree(rig.disk, "consumequeue/Quiet/0")
    rig.disk.remove_directory("consumequeue/Quiet")
    rig.open()

    assert rig.bodies("Quiet") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("ends", ["kill", "crash", "reopen"])
def test_a_deleted_topic_is_not_reported_as_lost(ends: str) -> None:
    rig = with_idle_queue(20)
    delete_topic(rig.store, "Quiet")
    assert getattr(rig, ends)().recovery.scanned_from > 0
    store_more(rig)
    assert getattr(rig, ends)().recovery.scanned_from > 0
    remove_tree(rig.disk, "consumequeue/T/0")
    assert getattr(rig, ends)().recovery.scanned_from == 0
    assert rig.store.reader.max_offset("T", 0) == 50


def test_files_lost_with_the_log_cause_no_second_full_scan() -> None:
    rig = with_idle_queue(3)
    rig.put(topic="Lost")
    rig.store.abandon()
    rig.open()
    before = rig.kill().recovery.scanned_from
    assert rig.kill().recovery.scanned_from == before > 0


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("bit", [0, 1, 50, 51, 52, 53])
def test_a_corrupt_first_entry_does_not_count_as_expired(bit: int, is_clean: bool) -> None:
    rig = with_idle_queue(0, LONG_FILES)
    expiry = rig.store.expiry
    expiry.remove([expiry.hide_segment()])
    expiry.sync_log()
    expiry.find_expired(expiry.queues())
    begin = rig.store.reader.min_offset("T", 0)
    assert begin > 0
    rig.reopen()
    end = rig.store.reader.max_offset("T", 0)
    rig.store.close(rig.now_ms) if is_clean else rig.store.abandon()
    name, at = "consumequeue/T/0/00000000000000000000", begin * ENTRY.size
    byte = rig.disk.read(name, at + bit // 8, 1)[0]
    rig.disk.write(name, at + bit // 8, [bytes((byte ^ 0x80 >> bit % 8,))])
    rig.open()

    assert rig.store.reader.min_offset("T", 0) == begin
    assert rig.store.reader.max_offset("T", 0) == end
    found = rig.store.reader.get("T", 0, GetRequest(begin, 32, 1 << 20, None))
    assert [m.queue_offset for m in decode_messages(found.body)][:1] == [begin]
    rig.store.writer.write_repaired(found.repaired)
    assert rig.problems() == []
