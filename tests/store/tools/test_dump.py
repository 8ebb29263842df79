"""Each kind of file is dumped row by row, within the requested range."""

from __future__ import annotations

from typing import Any

import pytest

from kourou.store.tools.dump import FileKind, Row, dump_file, kind_of
from kourou.testing.disk import SimDisk
from tests.store import golden
from tests.store.rig import Rig, draft

LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/T/0/00000000000000000000"


def dump(disk: SimDisk, name: str, **options: Any) -> list[Row]:
    kind = kind_of(name)
    assert kind is not None
    return list(dump_file(disk, name, kind, **options))


@pytest.fixture
def rig() -> Rig:
    """Return a closed store with four messages."""
    made = Rig()
    for number in range(4):
        properties = {"TAGS": "eu", "KEYS": f"k{number} all", "UNIQ_KEY": f"ID{number}"}
        made.store.writer.append(draft(b"body %d" % number, properties=properties), made.now_ms)
    made.commit()
    made.store.close(made.now_ms)
    return made


def test_a_log_is_dumped_record_by_record(rig: Rig) -> None:
    rows = dump(rig.disk, LOG)

    assert [row["what"] for row in rows] == ["record"] * 4 + ["unused"]
    first = rows[0]
    assert (first["topic"], first["queue_id"], first["queue_offset"]) == ("T", 0, 0)
    assert (first["msg_id"], first["tags"], first["keys"]) == ("ID0", "eu", ["k0", "all"])
    assert (first["store_at_ms"], first["body_bytes"]) == (1_000_000, 6)
    assert rows[1]["position"] == first["position"] + first["size"]


def test_a_range_of_a_log_is_dumped(rig: Rig) -> None:
    rows = dump(rig.disk, LOG)
    start, stop = rows[1]["position"], rows[3]["position"]

    assert dump(rig.disk, LOG, start=start, stop=stop) == rows[1:3]


def test_damage_is_a_row(rig: Rig) -> None:
    rig.disk.write(LOG, 120, [b"??"])

    damaged, second, *_ = dump(rig.disk, LOG)
    assert (damaged["what"], damaged["position"]) == ("damage", 0)
    assert "checksum" in damaged["problem"]
    assert second["queue_offset"] == 1


def test_a_queue_is_dumped_entry_by_entry(rig: Rig) -> None:
    rows = dump(rig.disk, QUEUE)

    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["what"] for row in rows] == ["entry"] * 4 + ["unused"]
    assert rows[4]["count"] == 4
    assert rows[1]["physical_offset"] == dump(rig.disk, LOG)[1]["position"]
    assert dump(rig.disk, QUEUE, start=2, stop=3) == rows[2:3]


def test_a_torn_end_of_a_queue_is_a_row(rig: Rig) -> None:
    rig.disk.truncate(QUEUE, 70)

    last = dump(rig.disk, QUEUE)[-1]
    assert (last["what"], last["problem"]) == ("damage", "10 bytes are no unit")


def test_a_checkpoint_and_small_files_are_dumped(rig: Rig) -> None:
    rows = {row["what"]: row["value"] for row in dump(rig.disk, "checkpoint")}
    last = dump(rig.disk, LOG)[3]

    assert rows["size"] == 4096
    assert (rows["queues_offset"], rows["log_at_ms"]) == (last["position"], 1_000_000)
    assert rows["copy.synced_position"] == last["position"] + last["size"]
    assert dump(rig.disk, "lock") == [{"what": "text", "value": "lock"}]
    state = {row["what"]: row["value"] for row in dump(rig.disk, "config/kourou-store.json")}
    assert state["commitlog_segment_bytes"] == 4096


def test_a_damaged_checkpoint_copy_is_reported(rig: Rig) -> None:
    rig.disk.write("checkpoint", 520, [b"?"])

    assert {"what": "copy", "value": "damaged"} in dump(rig.disk, "checkpoint")


def test_a_config_file_that_does_not_parse_is_dumped_as_text(rig: Rig) -> None:
    rig.disk.truncate("config/topics.json", 0)
    rig.disk.write("config/topics.json", 0, [b'{"a":'])

    damage, text = dump(rig.disk, "config/topics.json")
    assert damage["what"] == "damage"
    assert text["value"] == '{"a":'


def index_keys(disk: SimDisk) -> set[int]:
    (name,) = disk.list("index")
    return {row["physical_offset"] for row in dump(disk, f"index/{name}") if row["what"] == "entry"}


def test_an_index_file_is_dumped_with_its_header(rig: Rig) -> None:
    (name,) = rig.disk.list("index")
    header, *entries = dump(rig.disk, f"index/{name}")

    assert header["what"] == "header"
    assert header["entries"] == 1 + 4 * 4, "an id, two keys and a tag each"
    assert [row["what"] for row in entries[:16]] == ["entry"] * 16
    assert [row["number"] for row in entries[:3]] == [1, 2, 3]
    assert index_keys(rig.disk) == {row["position"] for row in dump(rig.disk, LOG)[:4]}


def test_dumped_java_queues_match_the_manifest() -> None:
    recorded = golden.load("clean")
    for topic, queues in recorded.manifest["queues"].items():
        for queue_id, queue in queues.items():
            if queue["type"] != "SimpleCQ":
                continue
            reported = [
                [row["offset"], row["physical_offset"], row["size"], row["tags_code"]]
                for name in recorded.disk.list(f"consumequeue/{topic}/{queue_id}")
                for row in dump(recorded.disk, f"consumequeue/{topic}/{queue_id}/{name}")
                if row["what"] == "entry"
            ]
            assert reported == [unit[:4] for unit in queue["units"]], (topic, queue_id)


def test_a_dumped_java_log_matches_the_manifest() -> None:
    recorded = golden.load("clean")
    reported = [
        (row["position"], row["topic"], row["queue_offset"])
        for name in recorded.disk.list("commitlog")
        for row in dump(recorded.disk, f"commitlog/{name}")
        if row["what"] == "record"
    ]

    assert len(reported) == len(recorded.manifest["records"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("batchconsumequeue/T/0/00000000000000000000", FileKind.BATCH_QUEUE),
        ("consumequeue_ext/T/0/00000000000000000000", FileKind.EXTENSION),
        ("index/20251121090000000", FileKind.INDEX),
        ("abort", FileKind.TEXT),
        ("timerlog/00000000000000000000", FileKind.TIMER_LOG),
        ("config/timercheck", FileKind.TIMER_CHECK),
        ("elsewhere/00000000000000000000", None),
    ],
)
def test_the_kind_of_a_file_is_derived_from_its_name(name: str, kind: FileKind | None) -> None:
    assert kind_of(name) is kind
