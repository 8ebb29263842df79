"""Extension units have Java's layout, and tag filters get the tags codes in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.protocol.hashing import java_string_hash
from kourou.protocol.record.decode import decode_messages
from kourou.store.formats import ENTRY, ENTRY_BYTES
from kourou.store.queues.queue_extension import (
    BIT_MAP_BYTES_MAX,
    ExtensionUnit,
    QueueExtension,
    encode_unit,
    is_address,
)
from kourou.store.reading.verified_get import GetRequest
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, Rig, draft

LOWEST = -(1 << 63)
FILE_BYTES = 100
NAME = f"consumequeue_ext/T/0/{0:020d}"
QUEUE_NAME = f"consumequeue/T/0/{0:020d}"
EXTENDED = replace(CONFIG, consumequeue_extension=True, extension_file_bytes=FILE_BYTES)


def new_extension(disk: SimDisk | None = None) -> QueueExtension:
    return QueueExtension(disk or SimDisk(), "T", 0, FILE_BYTES)


def test_a_unit_has_javas_layout() -> None:
    unit = ExtensionUnit(-2, 0x0102, b"\xaa\xbb")
    assert encode_unit(unit).hex() == (
        "0016" + "fffffffffffffffe" + "0000000000000102" + "0002" + "aabb"
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, False), (-(1 << 31), False), (-(1 << 31) - 1, True), (LOWEST, True), (1 << 40, False)],
)
def test_addresses_are_smaller_than_any_code(code: int, expected: bool) -> None:
    assert is_address(code) is expected


@given(st.lists(st.binary(max_size=76), max_size=12), st.integers(0, 12))
def test_units_are_the_same_before_and_after_a_flush(maps: list[bytes], flushed: int) -> None:
    disk = SimDisk()
    extension = new_extension(disk)
    units, addresses = [ExtensionUnit(n, n * 10, bits) for n, bits in enumerate(maps)], []
    for index, unit in enumerate(units):
        if index == flushed:
            extension.flush()
        addresses.append(extension.put(unit))
    assert [extension.unit(address or 0) for address in addresses] == units
    extension.flush()
    again = new_extension(disk)
    again.load()
    again.end_after(addresses[-1] if addresses else None)
    assert [again.unit(address or 0) for address in addresses] == units
    assert again.end == extension.end


def test_a_unit_never_crosses_files_and_the_end_is_marked() -> None:
    disk = SimDisk()
    extension = new_extension(disk)
    first, second = (extension.put(ExtensionUnit(n, 0, bytes(40))) for n in (1, 2))
    extension.flush()
    assert (first, second) == (LOWEST, LOWEST + FILE_BYTES)
    assert disk.read(NAME, 60, 4) == b"\xff\xff\0\0"


def test_a_unit_that_does_not_fit_has_no_address() -> None:
    assert new_extension().put(ExtensionUnit(1, 2, bytes(BIT_MAP_BYTES_MAX))) is None


@pytest.mark.parametrize(
    "data", [b"", b"\0\x13", b"\x7f\xff" + bytes(18), b"\0\x14" + b"\xff" * 18]
)
def test_invalid_bytes_decode_to_none(data: bytes) -> None:
    disk = SimDisk()
    extension = new_extension(disk)
    address = extension.put(ExtensionUnit(1, 2, b""))
    assert address is not None
    extension.flush()
    disk.write(NAME, 0, [data.ljust(FILE_BYTES, b"\0")])
    assert extension.unit(address) is None
    assert extension.unit(LOWEST + 5000) is None
    assert extension.unit(7) is None


def test_files_of_another_size_are_ignored() -> None:
    disk = SimDisk()
    disk.make_directory("consumequeue_ext/T/0")
    disk.truncate(f"consumequeue_ext/T/0/{64:020d}", 64)
    extension = new_extension(disk)
    extension.load()
    assert extension.unit(LOWEST + 64) is None


# In a store --------------------------------------------------------------------------------------


def tags(rig: Rig, tag: str) -> list[bytes]:
    """Return the messages that a consumer of the tag receives."""
    code = java_string_hash(tag)
    bodies: list[bytes] = []
    offset = 0
    while offset < rig.store.reader.max_offset("T", 0):
        found = rig.store.reader.get("T", 0, GetRequest(offset, 32, 1 << 20, code.__eq__))
        bodies += [message.body for message in decode_messages(found.body)]
        offset = found.plan.next_offset
    return bodies


def put(rig: Rig, *tagged: str) -> None:
    for tag in tagged:
        rig.store.writer.append(draft(tag.encode(), properties={"TAGS": tag}), rig.now_ms)
        rig.commit()


def test_a_filter_gets_the_tags_codes_of_units() -> None:
    rig = Rig(config=EXTENDED)
    put(rig, "a", "b", "a")
    rig.tick()
    put(rig, "b", "a")
    entry = rig.store.reader.entry("T", 0, 0)
    assert entry is not None
    assert is_address(entry.tags_code)
    assert tags(rig, "a") == [b"a"] * 3
    assert tags(rig, "b") == [b"b"] * 2


@pytest.mark.parametrize("way", ["reopen", "kill", "crash"])
def test_units_survive_every_kind_of_stop(way: str) -> None:
    rig = Rig(config=EXTENDED)
    put(rig, *"abcab")
    rig.tick()
    put(rig, *"cab")
    getattr(rig, way)()
    put(rig, *"aa")
    rig.tick()
    assert tags(rig, "a") == [b"a"] * 5
    assert tags(rig, "c") == [b"c"] * 2
    assert rig.problems() == []


def test_a_store_with_units_works_with_the_option_off() -> None:
    rig = Rig(config=EXTENDED)
    put(rig, *"ab")
    rig.store.close(rig.now_ms)
    rig.config = CONFIG
    rig.open()
    put(rig, *"ab")
    assert tags(rig, "a") == [b"a", b"a"]
    entry = rig.store.reader.entry("T", 0, 2)
    assert entry is not None
    assert entry.tags_code == ord("a")


def test_a_message_whose_unit_is_lost_passes_every_filter() -> None:
    rig = Rig(config=EXTENDED)
    put(rig, *"ab")
    rig.tick()
    rig.disk.write(NAME, 0, [bytes(FILE_BYTES)])
    assert tags(rig, "zz") == [b"a", b"b"]


def test_bit_maps_come_from_the_given_function() -> None:
    rig = Rig(config=EXTENDED)
    rig.store.writer.set_bit_map_function(lambda record: bytes([record.size % 256]))
    put(rig, "a")
    rig.tick()
    size = ENTRY.unpack(rig.disk.read(QUEUE_NAME, 0, ENTRY_BYTES))[1]
    assert rig.disk.read(NAME, 0, 21)[18:] == b"\0\x01" + bytes([size % 256])


def test_units_are_removed_with_their_topic() -> None:
    rig = Rig(config=EXTENDED)
    put(rig, *"ab")
    rig.tick()
    deletion = rig.store.writer.begin_deletion("T")
    assert deletion is not None
    deletion.note()
    rig.kill()
    assert rig.disk.list("consumequeue_ext") == []


@pytest.mark.parametrize(
    ("at", "data", "problem"),
    [
        (0, b"\0\0", "no valid extension unit"),
        (20 + 2 + 7, b"z", f"the unit has tags code {ord('z')}, must have {ord('b')}"),
    ],
)
def test_a_check_compares_units_with_the_messages(at: int, data: bytes, problem: str) -> None:
    rig = Rig(config=EXTENDED)
    put(rig, *"abcabc")
    rig.store.close(rig.now_ms)
    rig.disk.write(NAME, at, [data])

    (finding,) = check_store(rig.disk).findings
    assert (finding.file, finding.offset) == (NAME, at - at % 20)
    assert problem in finding.problem
