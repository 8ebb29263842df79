"""Exported messages are unchanged, and can be imported into another store."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from kourou.errors import InvalidMessageError, StoreFullError, StoreLockedError
from kourou.model.sysflag import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED
from kourou.protocol.topic_table import decode_topic_config_table
from kourou.store.log.log_walk import LogPiece
from kourou.store.state.config_file import ConfigFile
from kourou.store.tools.check import check_store
from kourou.store.tools.export import Row, Selection, export_messages
from kourou.store.tools.import_messages import import_messages
from kourou.testing.disk import SimDisk
from tests.store import golden
from tests.store.rig import Rig, delete_topic, draft

FIRST = "commitlog/00000000000000000000"
ALL = Selection(with_system=True)


def rows(disk: SimDisk, wanted: Selection = ALL) -> list[Row]:
    return [one for one in export_messages(disk, wanted) if not isinstance(one, LogPiece)]


def filled() -> Rig:
    """Return an open store with four topics, whose messages are a second apart."""
    rig = Rig()
    for number, topic in enumerate(("A", "B", "rmq_sys_x", "A", "%RETRY%g", "B")):
        properties = {"TAGS": "eu", "KEYS": "k", "UNIQ_KEY": f"ID{number}", "user": "x"}
        rig.now_ms = 1_000_000 + number * 1000
        one = draft(b"%d" % number, topic=topic, queue_id=number % 2, properties=properties)
        rig.store.writer.append(one, rig.now_ms)
    rig.commit()
    return rig


def test_a_row_contains_the_whole_message() -> None:
    row = rows(filled().disk)[0]

    assert row == {
        "topic": "A",
        "queue_id": 0,
        "queue_offset": 0,
        "store_at_ms": 1_000_000,
        "store_host": "127.0.0.1:10911",
        "msg_id": "ID0",
        "tags": "eu",
        "keys": ["k"],
        "properties": {"user": "x"},
        "system_properties": {"TAGS": "eu", "KEYS": "k", "UNIQ_KEY": "ID0"},
        "flag": 0,
        "sys_flag": 0,
        "born_at_ms": 1_000,
        "born_host": "127.0.0.1:40000",
        "reconsume_times": 0,
        "body": b"0",
    }


def test_a_record_that_is_being_written_is_omitted_and_no_damage() -> None:
    rig = filled()
    rig.tick()
    end = rig.store.reader.written_position
    for number in range(2):
        rig.append(b"%d" % number, "A")
    rig.store.writer.write()
    rig.disk.write(FIRST, end, [bytes(20)])

    pieces = list(export_messages(rig.disk, ALL, live=True))

    assert [one for one in pieces if isinstance(one, LogPiece)] == []
    assert len(pieces) == 6
    assert len(rows(rig.disk)) == 7


@pytest.mark.parametrize(
    ("wanted", "bodies"),
    [
        (Selection(), b"01345"),
        (ALL, b"012345"),
        (Selection(topics=["B"]), b"15"),
        (Selection(topics=["rmq_sys_x"]), b"2"),
        (Selection(queue_id=1), b"135"),
        (Selection(begin_ms=1_003_000), b"345"),
        (Selection(end_ms=1_003_000), b"013"),
    ],
)
def test_only_selected_messages_are_exported(wanted: Selection, bodies: bytes) -> None:
    assert b"".join(row["body"] for row in rows(filled().disk, wanted)) == bodies


def test_invisible_messages_are_not_exported() -> None:
    rig = filled()
    rig.store.writer.append(draft(b"half", sys_flag=TRANSACTION_PREPARED), rig.now_ms)
    rig.commit()
    delete_topic(rig.store, "B")

    assert b"".join(row["body"] for row in rows(rig.disk)) == b"0234"


def test_a_compressed_body_is_exported_decompressed() -> None:
    rig = Rig()
    flags = COMPRESSED | COMPRESSION_ZLIB
    rig.store.writer.append(draft(zlib.compress(b"long" * 9), sys_flag=flags), rig.now_ms)
    rig.commit()

    (row,) = rows(rig.disk)
    assert (row["body"], row["sys_flag"]) == (b"long" * 9, 0)


def test_a_body_that_cannot_be_decompressed_is_exported_unchanged() -> None:
    rig = Rig()
    rig.store.writer.append(draft(b"no stream", sys_flag=COMPRESSED | COMPRESSION_ZLIB), rig.now_ms)
    rig.commit()

    (row,) = rows(rig.disk)
    assert (row["body"], row["sys_flag"]) == (b"no stream", COMPRESSED | COMPRESSION_ZLIB)


def test_damage_is_reported_and_skipped() -> None:
    rig = filled()
    rig.disk.write(FIRST, 100, [b"???"])
    found = list(export_messages(rig.disk, ALL))

    assert [one.position for one in found if isinstance(one, LogPiece)] == [0]
    assert len(found) == 6


def test_an_import_reproduces_the_exported_store() -> None:
    rig = filled()
    before = rows(rig.disk)
    disk = SimDisk()

    done = import_messages(disk, before, 5, pid=1)

    assert (done.messages, done.queues) == (6, {"A": 2, "B": 2, "rmq_sys_x": 1, "%RETRY%g": 1})
    assert rows(disk) == before
    assert check_store(disk).findings == []


def test_an_import_appends_to_an_existing_store() -> None:
    rig = filled()
    before = rows(rig.disk, Selection(topics=["A"]))
    rig.now_ms = 2_000_000
    rig.put(b"here", topic="A")
    rig.store.close(rig.now_ms)

    import_messages(rig.disk, before, 5, pid=1)

    rig.open()
    assert rig.bodies("A", 0) == [b"0", b"here", b"0"]
    assert rows(rig.disk)[-1]["store_at_ms"] == 2_000_000, "never before the one before it"
    assert rig.problems() == []


def test_an_import_registers_unknown_topics() -> None:
    rig = filled()
    disk = SimDisk()
    some = rows(rig.disk, Selection(topics=["A", "B"]))
    first = import_messages(disk, some[:1], 5, pid=1)
    second = import_messages(disk, some, 5, pid=1)

    data = ConfigFile(disk, "config/topics.json").load()
    assert data is not None
    topics = decode_topic_config_table(data).topics
    assert (first.new_topics, second.new_topics) == (["A"], ["B"])
    assert {name: one.write_queue_nums for name, one in topics.items()} == {"A": 1, "B": 2}
    assert second.grown_topics == ["A"]
    assert {name: one.read_queue_nums for name, one in topics.items()} == {"A": 2, "B": 2}


def test_an_import_ends_at_an_invalid_row() -> None:
    before = rows(filled().disk)
    bad = Row(**{**before[2], "queue_id": -1})
    disk = SimDisk()

    with pytest.raises(InvalidMessageError, match=r"queue id -1.*messages stored before it: 2"):
        import_messages(disk, [*before[:2], bad, *before[3:]], 5, pid=1)
    assert rows(disk) == before[:2]
    assert check_store(disk).findings == []


def test_an_import_that_fills_the_disk_raises_and_leaves_a_correct_store() -> None:
    before = rows(filled().disk)
    disk = SimDisk(free=50 * 1024 * 1024)
    many = [
        Row(**{**row, "body": bytes([n % 251 + 1]) * 400_000}) for n in range(20) for row in before
    ]

    with pytest.raises(StoreFullError, match="free"):
        import_messages(disk, many, 5, pid=1)
    assert check_store(disk).findings == []


def test_an_import_into_a_store_in_use_is_refused() -> None:
    rig = filled()

    with pytest.raises(StoreLockedError):
        import_messages(rig.disk, rows(rig.disk), 5, pid=1)


@pytest.mark.parametrize("name", ["clean", "lmq"])
def test_messages_of_a_java_store_can_be_exported_and_imported(name: str) -> None:
    recorded = golden.load(name)
    before = rows(recorded.disk)
    disk = SimDisk()
    import_messages(disk, before, 5, pid=1)

    def reported(row: Row) -> tuple[object, ...]:
        return row["topic"], row["queue_id"], row["store_at_ms"], row["properties"], row["body"]

    assert len(before) > 10
    assert [reported(row) for row in rows(disk)] == [reported(row) for row in before]
    assert check_store(disk).findings == []


def test_an_inner_batch_is_exported_as_its_messages() -> None:
    recorded = golden.load("clean")
    batches = [
        record
        for record in recorded.manifest["records"]
        if int(record["properties"].get("INNER_NUM", 0)) > 1
    ]
    found = rows(recorded.disk, Selection(topics={one["topic"] for one in batches}))

    assert len(found) > len(batches) > 0
    assert all(row["sys_flag"] == 0 for row in found)


def test_ipv6_hosts_survive_export_and_import() -> None:
    rig = Rig()
    rig.store.writer.append(replace(draft(), born_host=("2001:db8::7", 4000)), rig.now_ms)
    rig.commit()
    before = rows(rig.disk)
    disk = SimDisk()
    import_messages(disk, before, 5, pid=1)

    assert before[0]["born_host"] == "[2001:db8::7]:4000"
    assert rows(disk) == before
