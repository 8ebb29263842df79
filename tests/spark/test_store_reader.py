"""Tests of reads of store directories without Spark: rows of messages, damage and live stores."""

from __future__ import annotations

import pickle
import sys
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.disk import Disk, OsDisk
from kourou.errors import CodecMissingError, ConfigError
from kourou.model.sysflag import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED
from kourou.protocol.compression import DECOMPRESSED_SIZE_MAX, CompressionType
from kourou.protocol.record.layout import HEAD_BYTES
from kourou.spark import record_columns, store_reader
from kourou.spark.log_runs import LogRun
from kourou.spark.read_options import parse_read_options
from kourou.spark.schema import COLUMNS, STORE_COLUMNS, arrow_schema
from kourou.spark.store_reader import StoreReader, read_part
from kourou.spark.store_rows import store_columns
from kourou.store.config import StoreConfig
from kourou.store.log.log_walk import LogPiece, PieceKind, walk_log, with_damage
from kourou.store.message_store import MessageStore
from kourou.store.state.file_sizes import log_files
from kourou.store.tools.export import Selection, export_messages
from kourou.store.tools.log_parts import plan_log
from tests.store import golden, rig
from tests.store.rig import CONFIG, delete_topic, draft

ALL = (*COLUMNS, *STORE_COLUMNS)
SEGMENT_BYTES = 65_536
START_MS = 1_700_000_000_000


T = TypeVar("T")


def sent(value: T) -> T:
    """Return the value as another process of Spark receives it."""
    received: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own
    return received


def read(path: Path, columns: Sequence[str] = ALL, **options: str) -> list[dict[str, Any]]:
    """Return the rows of all tasks, in the order of the log."""
    parsed = parse_read_options({"storePath": str(path), **options}, is_stream=False)
    reader = sent(StoreReader(parsed, columns))
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(sent(partition)):
            assert batch.schema == arrow_schema(columns, store_columns(parsed.columns))
            rows += batch.to_pylist()
    if "commitLogOffset" in columns:
        rows.sort(key=lambda row: row["commitLogOffset"])
    return rows


def messages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["corrupt"] is None]


class Store:
    """A store in a directory, written as a broker does."""

    def __init__(self, path: Path, config: StoreConfig) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.disk = OsDisk(path)
        self.now_ms = START_MS
        self.store = MessageStore.open(self.disk, config, self.now_ms, pid=1)

    def put(self, body: bytes = b"hello", **changes: Any) -> int:
        """Store a message durably; return its position in the log."""
        one = replace(draft(body), **changes)
        appended = self.store.writer.append(one, self.now_ms)
        self.store.writer.write()
        plan = self.store.writer.sync_plan()
        assert plan is not None
        self.store.writer.run_sync(plan)
        self.store.writer.synced(plan)
        self.store.writer.dispatch(self.store.reader.synced_position)
        self.now_ms += 1_000
        self.store.writer.flush(self.now_ms)
        return appended.physical_offset

    def close(self) -> None:
        self.store.close(self.now_ms)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    config = replace(CONFIG, commitlog_segment_bytes=SEGMENT_BYTES)
    return Store(tmp_path / "store", config)


def unpacked(name: str, path: Path) -> Path:
    """Unpack a recorded store of a Java broker."""
    with zipfile.ZipFile(golden.FOLDER / f"{name}.zip") as archive:
        archive.extractall(path)
    return path


@pytest.mark.parametrize("name", golden.NAMES)
def test_every_message_of_a_java_store_is_a_row(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path)
    exported = [
        row for row in export_messages(OsDisk(path), Selection()) if not isinstance(row, LogPiece)
    ]

    found = messages(read(path, includeDeletedTopics="true"))

    assert len(found) == len(exported) > 10
    for row, one in zip(found, exported, strict=True):
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            one["topic"],
            one["queue_id"],
            one["queue_offset"],
        )
        assert (row["body"], row["msgId"], row["tags"]) == (one["body"], one["msg_id"], one["tags"])
        assert row["keys"] == one["keys"]
        properties = one["properties"] | (one["system_properties"] or {})
        assert properties.items() <= dict(row["properties"]).items()
        assert row["bornHost"] == one["born_host"]
        assert row["storeTimestamp"].timestamp() * 1000 == one["store_at_ms"]
        assert row["brokerName"] is None


def test_messages_of_deleted_topics_and_system_topics_are_shown_if_asked(store: Store) -> None:
    store.put(b"deleted", topic=b"D")
    store.put(b"kept", topic=b"K")
    store.put(b"delayed", topic=b"SCHEDULE_TOPIC_XXXX")
    store.put(b"half", topic=b"RMQ_SYS_TRANS_HALF_TOPIC")
    store.put(b"prepared", topic=b"K", sys_flag=TRANSACTION_PREPARED)
    store.put(b"dead", topic=b"%DLQ%g")
    delete_topic(store.store, "D")
    store.put(b"new", topic=b"D")
    store.close()

    def bodies(**options: str) -> list[bytes]:
        return [row["body"] for row in read(store.path, **options)]

    assert bodies() == [b"kept", b"dead", b"new"]
    assert bodies(includeDeletedTopics="true") == [b"deleted", b"kept", b"dead", b"new"]
    assert bodies(includeSystemTopics="true") == [
        b"kept", b"delayed", b"half", b"prepared", b"dead", b"new",
    ]  # fmt: skip


def test_topics_select_messages_and_other_topics_are_not_decoded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    for topic in (b"orders", b"%RETRY%billing", b"other"):
        store.put(topic, topic=topic)
    store.put(b"", topic=b"other", sys_flag=CompressionType.LZ4.sys_flag)

    def bodies(topics: str) -> list[bytes]:
        options = {"storeTopics": topics, "includeDeletedTopics": "true"}
        return [row["body"] for row in read(store.path, **options)]

    assert bodies("orders") == [b"orders"]
    assert bodies("%RETRY%billing, orders") == [b"orders", b"%RETRY%billing"]
    assert bodies("absent") == []
    with pytest.raises(CodecMissingError):
        bodies("other")


def test_topic_that_the_store_does_not_have_is_refused_with_the_nearest_name(
    tmp_path: Path,
) -> None:
    path = unpacked("clean", tmp_path)
    [known, *_] = {row["topic"] for row in read(path)}

    with pytest.raises(ConfigError, match=f"storeTopics names '{known}x', .* mean '{known}'"):
        read(path, storeTopics=f"{known}x")
    with pytest.raises(ConfigError, match="storeTopics names the system topic 'SCHEDULE_TOPIC"):
        read(path, storeTopics="SCHEDULE_TOPIC_XXXX")
    assert {row["topic"] for row in read(path, storeTopics=known)} == {known}


def test_a_corrupt_range_is_a_row_with_its_position_and_problem(store: Store) -> None:
    positions = [store.put(b"%d" % number) for number in range(9)]
    store.close()
    store.disk.write("commitlog/" + "0" * 20, positions[3] + HEAD_BYTES, [b"?"])

    rows = read(store.path)

    [bad] = [row for row in rows if row["corrupt"] is not None]
    assert bad["corrupt"] == "the body's checksum differs"
    assert (bad["commitLogOffset"], bad["storeSize"]) == (
        positions[3],
        positions[4] - positions[3],
    )
    assert {name for name, value in bad.items() if value is not None} == set(STORE_COLUMNS)
    assert [row["body"] for row in messages(rows)] == [b"%d" % n for n in range(9) if n != 3]


def test_a_read_without_the_column_corrupt_has_no_rows_of_ranges(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    positions = [store.put(b"%d" % number) for number in range(3)]
    store.close()
    store.disk.write("commitlog/" + "0" * 20, positions[1] + HEAD_BYTES, [b"?"])

    assert read(store.path, ["body"]) == [{"body": b"0"}, {"body": b"2"}]
    [record] = [record for record in caplog.records if "spark_store" in record.getMessage()]
    assert f"position={positions[1]}" in record.message


def test_a_body_that_cannot_be_decompressed_is_a_row_with_the_stored_body(store: Store) -> None:
    flags = COMPRESSED | COMPRESSION_ZLIB
    store.put(b"before")
    position = store.put(b"no stream", sys_flag=flags)
    store.put(zlib.compress(b"long" * 9), sys_flag=flags)
    store.close()

    before, bad, after = read(store.path)

    assert (before["body"], before["corrupt"]) == (b"before", None)
    assert (after["body"], after["sysFlag"], after["corrupt"]) == (
        b"long" * 9,
        COMPRESSION_ZLIB,
        None,
    )
    assert (bad["body"], bad["commitLogOffset"], bad["topic"]) == (b"no stream", position, "T")
    assert bad["corrupt"].startswith("the body cannot be decoded: ")


def test_bodies_beyond_the_limit_of_one_call_are_decoded_by_further_calls(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_columns, "DECOMPRESSED_TOTAL_MAX", DECOMPRESSED_SIZE_MAX)
    flags = COMPRESSED | COMPRESSION_ZLIB
    bodies = [b"%d" % number * 9 for number in range(9)]
    for number, body in enumerate(bodies):
        if number % 3:
            store.put(zlib.compress(body), sys_flag=flags)
        else:
            store.put(body)
    store.close()

    assert [row["body"] for row in read(store.path)] == bodies


def test_a_store_in_use_is_read_up_to_its_durable_end_and_stays_locked(store: Store) -> None:
    for number in range(5):
        store.put(b"%d" % number)
    store.store.writer.append(draft(b"not durable"), store.now_ms)
    store.store.writer.write()

    assert [row["body"] for row in read(store.path)] == [b"%d" % number for number in range(5)]
    assert store.disk.is_locked("lock")
    store.put(b"5")
    assert len(read(store.path)) == 7


def test_a_large_log_is_read_in_parallel_and_each_record_once(store: Store) -> None:
    for number in range(400):
        store.put(b"x" * (number % 400), queue_id=number % 3)
    store.close()

    parsed = parse_read_options(
        {"storePath": str(store.path), "minPartitions": "7"}, is_stream=False
    )
    reader = StoreReader(parsed, ALL)
    rows = read(store.path, minPartitions="7")

    assert len(reader.partitions()) >= 7
    assert [len(row["body"]) for row in rows] == [number % 400 for number in range(400)]
    assert len(read(store.path, maxPartitions="1")) == 400


def test_a_record_longer_than_a_chunk_is_read(tmp_path: Path) -> None:
    big = Store(tmp_path / "store", replace(CONFIG, commitlog_segment_bytes=16 << 20))
    body = bytes(range(256)) * (5 << 12)
    for one in (b"small", body, b"last"):
        big.put(one)
    big.close()

    assert [row["body"] for row in read(big.path)] == [b"small", body, b"last"]


def test_times_select_messages(store: Store) -> None:
    for number in range(10):
        store.put(b"%d" % number)
    store.close()
    bounds = {"startingTimestamp": str(START_MS + 3_000), "endingTimestamp": str(START_MS + 6_000)}

    assert [row["body"] for row in read(store.path, **bounds)] == [b"3", b"4", b"5"]


def test_chosen_columns_have_the_values_of_the_options(store: Store) -> None:
    position = store.put(b"hello")
    store.close()

    assert read(store.path, ["brokerName", "corrupt"], brokerName="broker-a") == [
        {"brokerName": "broker-a", "corrupt": None}
    ]
    assert read(store.path, ["commitLogOffset"]) == [{"commitLogOffset": position}]
    assert read(store.path, ["corrupt", "body", "topic"]) == [
        {"corrupt": None, "body": b"hello", "topic": "T"}
    ]


def test_bodies_are_decoded_as_json(store: Store) -> None:
    store.put(b'{"id": 7}')
    store.put(b"no json")
    store.put(b"no stream", sys_flag=COMPRESSED | COMPRESSION_ZLIB)
    store.close()
    options = {"bodyFormat": "json", "bodySchema": "id BIGINT"}

    permissive = read(store.path, ALL, **options)
    dropped = read(store.path, ALL, mode="dropMalformed", **options)

    assert [row["body"] for row in permissive] == [{"id": 7}, None, None]
    assert [(row["body"], row["commitLogOffset"]) for row in dropped] == [
        ({"id": 7}, 0),
        (None, permissive[2]["commitLogOffset"]),
    ]
    assert dropped[1]["corrupt"].startswith("the body cannot be decoded")


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()

    assert read(tmp_path) == []


def test_a_directory_without_a_store_is_refused_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storePath is '.*/nowhere', but this machine has no"):
        read(tmp_path / "nowhere")


def test_a_worker_that_does_not_see_the_store_fails(store: Store) -> None:
    store.put()
    store.close()
    reader = StoreReader(parse_read_options({"storePath": str(store.path)}, is_stream=False), ALL)
    [partition] = reader.partitions()
    store.path.rename(store.path.with_name("moved"))

    with pytest.raises(ConfigError, match="but a worker has no store there"):
        list(reader.read(partition))


def positions(disk: Disk, part_bytes: int) -> list[tuple[int, int, bool]]:
    """Return (position, size, is damage) of all records and ranges as tasks read them."""
    plan = plan_log(disk, part_bytes=part_bytes)
    found: list[tuple[int, int, bool]] = []
    for part in plan.parts:
        for one in read_part(disk, plan, part):
            if isinstance(one, LogRun):
                sizes = zip(one.positions.tolist(), one.sizes.tolist(), strict=True)
                found += [(position, size, False) for position, size in sizes]
            else:
                found.append((one.position, one.size, True))
    return found


@pytest.mark.parametrize("chunk_bytes", [100, 1_000, 1 << 22])
@given(
    damage=st.lists(
        st.tuples(st.integers(0, 3 * rig.SEGMENT_BYTES), st.binary(min_size=1, max_size=300)),
        max_size=5,
    ),
    part_bytes=st.sampled_from([500, 3_000, 1 << 30]),
)
def test_damage_anywhere_gives_the_records_and_ranges_of_the_general_walk(
    chunk_bytes: int, damage: list[tuple[int, bytes]], part_bytes: int
) -> None:
    one = rig.Rig()
    for number in range(60):
        one.put(b"x" * (number * 37 % 250), queue_id=number % 2)
    one.store.close(one.now_ms)
    size = rig.SEGMENT_BYTES
    for at, data in damage:
        one.disk.write(f"commitlog/{at - at % size:020d}", at % size, [data[: size - at % size]])
    walked = with_damage(walk_log(one.disk, log_files(one.disk, "commitlog"), size))
    expected = [
        (piece.position, piece.size, piece.kind is PieceKind.DAMAGE)
        for piece in walked
        if piece.kind in (PieceKind.RECORD, PieceKind.DAMAGE)
    ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_reader, "_CHUNK_BYTES", chunk_bytes)
        assert positions(one.disk, part_bytes) == expected
