"""A torn append ends the log before it; all earlier records stay."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import pytest

from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import AppendedRecord
from kourou.testing.disk import SECTOR, SimDisk
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig, draft

SEALED: Final = CONFIG
UNSEALED: Final = replace(CONFIG, append_property_crc=False)
BODY: Final = b"b" * 100
HEADER_BYTES: Final = 88
V6: Final = "fe80::1"


def v4() -> RecordDraft:
    return draft(BODY)


def v6() -> RecordDraft:
    return replace(draft(BODY), born_host=(V6, 40_000), store_host=(V6, 10_911))


def long_topic() -> RecordDraft:
    return draft(BODY, topic="%RETRY%" + "t" * 150)


def torn_store(config: StoreConfig, message: RecordDraft) -> tuple[Rig, AppendedRecord, bytes]:
    """Return a killed store with two messages, the second to be torn, and the second's bytes."""
    rig = Rig(config=config)
    rig.put(b"whole")
    torn = rig.store.writer.append(message, rig.now_ms)
    rig.store.writer.write()
    rig.store.writer.dispatch(rig.store.reader.written_position)
    rig.store.abandon()
    return rig, torn, rig.disk.read("commitlog/00000000000000000000", torn.physical_offset, 2000)


def assert_removed(rig: Rig, torn: AppendedRecord, data: bytes) -> None:
    """Open the store with these bytes in place of the record, and assert that it is removed."""
    rig.disk.write("commitlog/00000000000000000000", torn.physical_offset, [data])
    rig.open()
    assert rig.store.reader.written_position == torn.physical_offset
    assert rig.bodies() == [b"whole"]
    assert rig.store.reader.max_offset(torn.topic, 0) == (1 if torn.topic == "T" else 0)
    rest = rig.disk.read("commitlog/00000000000000000000", torn.physical_offset, SEGMENT_BYTES)
    assert rest.strip(b"\0") == b""
    rig.store.abandon()


@pytest.mark.parametrize("config", [SEALED, UNSEALED], ids=["sealed", "unsealed"])
@pytest.mark.parametrize("make", [v4, v6, long_topic])
def test_a_record_truncated_in_its_header_or_body_is_removed(
    make: object, config: StoreConfig
) -> None:
    assert callable(make)
    rig, torn, data = torn_store(config, make())
    header_bytes = HEADER_BYTES + (24 if make is v6 else 0)
    for size in range(1, header_bytes + 64):
        assert_removed(rig, torn, data[:size] + bytes(len(data) - size))


@pytest.mark.parametrize("make", [v4, v6, long_topic])
def test_a_sealed_record_truncated_at_any_byte_is_removed(make: object) -> None:
    assert callable(make)
    rig, torn, data = torn_store(SEALED, make())
    for size in range(1, torn.size):
        assert_removed(rig, torn, data[:size] + bytes(len(data) - size))


@pytest.mark.parametrize("config", [SEALED, UNSEALED], ids=["sealed", "unsealed"])
def test_a_record_without_its_beginning_is_removed(config: StoreConfig) -> None:
    rig, torn, data = torn_store(config, v4())
    for size in range(4, torn.size, 3):
        assert_removed(rig, torn, bytes(size) + data[size:])


def rolled_store() -> tuple[Rig, list[AppendedRecord]]:
    """Return a killed store whose log has just begun its second segment, without a sync."""
    rig = Rig()
    whole = [rig.put(b"%03d" % n + b"x" * 700) for n in range(4)]
    whole.append(rig.append(b"rolled" * 150))
    assert whole[-1].physical_offset == SEGMENT_BYTES
    rig.store.writer.write()
    rig.store.abandon()
    return rig, whole


@pytest.mark.parametrize("left", range(8))
def test_a_torn_blank_ends_the_log_before_it(left: int) -> None:
    rig, messages = rolled_store()
    end = messages[-2].end
    rig.disk.write("commitlog/00000000000000000000", end + left, [bytes(8 - left)])
    rig.open()

    assert rig.store.reader.written_position == end
    assert len(rig.bodies()) == 4
    assert rig.disk.list("commitlog") == ["00000000000000000000"]
    assert rig.put(b"next").queue_offset == 4
    assert rig.problems() == []


@pytest.mark.parametrize("size", [None, 0, 100, SEGMENT_BYTES - 1, SEGMENT_BYTES])
def test_an_interrupted_roll_loses_only_the_record_that_caused_it(size: int | None) -> None:
    rig, messages = rolled_store()
    name = f"commitlog/{SEGMENT_BYTES:020d}"
    rig.disk.truncate(name, 0)
    if size is None:
        rig.disk.unlink(name)
    else:
        rig.disk.truncate(name, size)
    rig.open()

    assert len(rig.bodies()) == 4
    assert rig.store.reader.written_position in (messages[-2].end, SEGMENT_BYTES)
    assert rig.put(b"next" * 200).queue_offset == 4
    assert rig.problems() == []


@pytest.mark.parametrize("seed", range(40))
def test_power_lost_while_the_log_rolls_keeps_what_was_synced(seed: int) -> None:
    rig = Rig(disk=SimDisk(seed))
    for number in range(4):
        rig.put(b"%03d" % number + b"x" * 700)
    for number in range(4, 8):
        rig.append(b"%03d" % number + b"x" * 700)
    rig.store.writer.write()
    rig.crash()

    bodies = rig.bodies()
    assert len(bodies) >= 4
    assert bodies == [b"%03d" % number + b"x" * 700 for number in range(len(bodies))]
    assert rig.problems() == []


def test_single_sectors_left_by_a_power_cut_are_not_a_record() -> None:
    rig = Rig(config=replace(CONFIG, commitlog_segment_bytes=64 * 1024))
    rig.put(b"whole")
    torn = rig.append(b"t" * 4000)
    rig.store.writer.write()
    rig.store.abandon()
    name = "commitlog/00000000000000000000"
    data = rig.disk.read(name, 0, torn.end)
    sectors = range(torn.physical_offset // SECTOR, torn.end // SECTOR + 1)
    dice = random.Random(7)
    for _ in range(100):
        lost = dice.sample(sectors, dice.randrange(1, len(sectors)))
        for sector in lost:
            start = max(sector * SECTOR, torn.physical_offset)
            end = min((sector + 1) * SECTOR, torn.end)
            rig.disk.write(name, start, [bytes(end - start)])
        rig.open()
        assert rig.store.reader.written_position == torn.physical_offset
        rig.store.abandon()
        rig.disk.write(name, 0, [data])
