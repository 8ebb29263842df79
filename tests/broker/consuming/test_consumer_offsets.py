"""Committed offsets: commits, Java's file, and the file's limit to the synced log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kourou.broker.consuming.consumer_offsets import (
    FILE_NAME,
    FOLLOWED_LAG_BYTES_MAX,
    ConsumerOffsets,
    parse_consumer_offsets,
)
from kourou.errors import CorruptRecordError, MalformedBodyError
from kourou.protocol.data_version import DataVersion
from kourou.store.state.config_file import ConfigFile, unseal
from kourou.testing.clock import ManualClock
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import call_directly

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "config" / "consumerOffset.json"


class Log:
    """Written and synced positions of a log."""

    def __init__(self, written: int = 0, synced: int = 0) -> None:
        self.written_position = written
        self.synced_position = synced


def offsets_on(disk: SimDisk, log: Log | None = None) -> ConsumerOffsets:
    file = ConfigFile(disk, FILE_NAME, parse_consumer_offsets)
    return ConsumerOffsets(file, call_directly, ManualClock(), log)


def disk_with(text: bytes) -> SimDisk:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write(FILE_NAME, 0, [text])
    return disk


def saved_text(disk: SimDisk) -> bytes:
    return unseal(disk.read(FILE_NAME, 0, disk.size(FILE_NAME))).data


def test_the_last_commit_wins_forward_or_back() -> None:
    offsets = offsets_on(SimDisk())
    assert offsets.query("g", "T", 0) is None

    offsets.commit("g", "T", 0, 7)
    offsets.commit("g", "T", 0, 3)

    assert offsets.query("g", "T", 0) == 3
    assert offsets.query("g", "T", 1) is None
    assert offsets.query("h", "T", 0) is None


def test_late_commit_of_a_pulling_member_does_not_move_back_the_offset_of_pops() -> None:
    offsets = offsets_on(SimDisk())
    offsets.commit("g", "T", 0, 3)
    offsets.commit_popped("g", "T", 0, 40)
    offsets.commit_pulled("g", "T", 0, 7, "host")
    assert offsets.query("g", "T", 0) == 40
    offsets.commit_pulled("g", "T", 0, 40, "host")  # the group pulls again
    offsets.commit_pulled("g", "T", 0, 39, "host")
    assert offsets.query("g", "T", 0) == 39


def test_reset_and_deletion_end_the_offset_of_pops() -> None:
    offsets = offsets_on(SimDisk())
    offsets.commit_popped("g", "T", 0, 40)
    offsets.reset("g", "T", 0, 0)
    assert not offsets.is_behind_pops("g", "T", 0, 5)
    offsets.commit_popped("g", "T", 0, 40)
    offsets.remove_topic("T")
    assert not offsets.is_behind_pops("g", "T", 0, 5)


def test_log_entries_for_offsets_set_back_are_rate_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    offsets = offsets_on(SimDisk())
    with caplog.at_level("INFO", logger="kourou.broker.consuming.consumer_offsets"):
        for _ in range(1_000):
            offsets.commit("g", "T", 0, 7)
            offsets.commit("g", "T", 0, 3)
    assert 1 <= len(caplog.records) <= 20


def test_the_file_has_javas_format() -> None:
    async def main() -> None:
        offsets.commit("g", "T", 1, 20)
        offsets.commit("g", "T", 0, 10)
        offsets.commit("g", "%RETRY%g", 0, 1)
        offsets.note_pulled("g", "T", 0, 12)
        assert await offsets.persist()

    disk = SimDisk()
    offsets = offsets_on(disk)
    asyncio.run(main())

    assert saved_text(disk) == (
        b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,'
        b'\n\t\t"timestamp":1700000000000\n\t},'
        b'\n\t"groupTopicMap":{\n\t\t"g":[\n\t\t\t"%RETRY%g",\n\t\t\t"T"\n\t\t]\n\t},'
        b'\n\t"offsetTable":{\n\t\t"%RETRY%g@g":{\n\t\t\t0:1\n\t\t},'
        b'\n\t\t"T@g":{\n\t\t\t0:10,\n\t\t\t1:20\n\t\t}\n\t},'
        b'\n\t"pullOffsetTable":{\n\t\t"T@g":{\n\t\t\t0:12\n\t\t}\n\t}\n}'
    )


def test_javas_file_is_read() -> None:
    offsets = offsets_on(disk_with(GOLDEN.read_bytes()))

    assert [offsets.query("store_group", "StoreNormal", queue_id) for queue_id in range(5)] == [
        10, 11, 12, 13, None,
    ]  # fmt: skip
    assert offsets.pulled("store_group", "StoreRetry", 0) == 6
    assert offsets.topics_of("store_group") == ["StoreNormal", "StoreRetry"]


def test_a_file_with_quoted_queue_ids_is_read_too() -> None:
    offsets = offsets_on(disk_with(b'{"offsetTable":{"T@g":{"0":5},"nonsense":{"0":1}}}'))

    assert offsets.query("g", "T", 0) == 5
    assert offsets.topics_of("g") == ["T"]


@pytest.mark.parametrize("text", [b"[]", b'{"offsetTable":[]}', b'{"offsetTable":{"T@g":{"a":1}}}'])
def test_a_file_of_another_shape_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        parse_consumer_offsets(text)
    with pytest.raises(CorruptRecordError):
        offsets_on(disk_with(text))


def test_removing_a_group_or_topic_removes_all_its_offsets() -> None:
    offsets = offsets_on(SimDisk())
    for group in ("g", "h"):
        for topic in ("T", "U"):
            offsets.commit(group, topic, 0, 1)
            offsets.note_pulled(group, topic, 0, 1)

    offsets.remove_group("g")
    offsets.remove_topic("U")

    assert offsets.topics_of("g") == []
    assert offsets.topics_of("h") == ["T"]
    assert offsets.pulled("h", "U", 0) is None


def test_offsets_beyond_the_end_after_a_crash_are_set_back() -> None:
    offsets = offsets_on(SimDisk())
    offsets.commit("g", "T", 0, 9)
    offsets.commit("g", "T", 1, 4)
    offsets.commit("g", "Gone", 0, 2)
    offsets.note_pulled("g", "T", 0, 10)
    ends = {("T", 0): 7, ("T", 1): 7}

    count = offsets.clamp(lambda topic, queue_id: ends.get((topic, queue_id), 0))

    assert count == 3
    assert offsets.query("g", "T", 0) == 7
    assert offsets.query("g", "T", 1) == 4
    assert offsets.query("g", "Gone", 0) == 0
    assert offsets.pulled("g", "T", 0) == 7


def test_the_file_is_not_written_ahead_of_the_synced_log() -> None:
    async def main() -> None:
        offsets.commit("g", "T", 0, 1)
        assert not await offsets.persist()
        assert not disk.exists(FILE_NAME)

        offsets.commit("g", "T", 0, 2)  # under load, the log's end is never synced
        log.written_position, log.synced_position = 200, 150
        assert not await offsets.persist()
        assert b"0:1" in saved_text(disk)  # so the offsets taken before are written

        log.synced_position = 200
        assert await offsets.persist()
        assert b"0:2" in saved_text(disk)

    disk, log = SimDisk(), Log(written=100, synced=99)
    offsets = offsets_on(disk, log)
    asyncio.run(main())


def test_a_failed_save_is_repeated() -> None:
    async def main() -> None:
        offsets.commit("g", "T", 0, 1)
        disk.fail_after(0, OSError(28, "No space left on device"))
        with pytest.raises(OSError, match="No space"):
            await offsets.persist()
        offsets.commit("g", "T", 0, 2)
        assert await offsets.persist()

    disk = SimDisk()
    offsets = offsets_on(disk)
    asyncio.run(main())

    assert offsets_on(disk).query("g", "T", 0) == 2


def test_nothing_is_written_when_nothing_changed() -> None:
    async def main() -> None:
        offsets.commit("g", "T", 0, 1)
        await offsets.persist()
        before = saved_text(disk)
        offsets.commit("g", "T", 0, 1)
        offsets.note_pulled("g", "T", 0, 1)
        await offsets.persist()
        after_pull = saved_text(disk)
        offsets.note_pulled("g", "T", 0, 1)
        assert await offsets.persist()
        assert saved_text(disk) == after_pull != before

    disk = SimDisk()
    offsets = offsets_on(disk)
    asyncio.run(main())


def test_the_table_for_replicas_has_no_pulled_offsets_which_java_cannot_read() -> None:
    offsets = offsets_on(SimDisk())
    offsets.commit("g", "T", 0, 10)
    offsets.note_pulled("g", "T", 0, 12)

    assert asyncio.run(offsets.body()) == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"groupTopicMap":{"g":["T"]},'
        b'"offsetTable":{"T@g":{0:10}},"pullOffsetTable":{}}'
    )


def test_a_slave_has_the_version_of_its_master_and_a_newer_one_when_it_has_changed() -> None:
    async def main() -> None:
        master, slave = DataVersion(9, 0, 5), DataVersion(3, 0, 7)
        offsets.follow({"T@g": {0: 4}}, None, lambda _: 0, master)
        assert b'"counter":9' in await offsets.body()
        offsets.follow({"T@g": {0: 4}}, None, lambda _: 0, slave)
        assert b'"counter":9' in await offsets.body()
        offsets.commit("g", "T", 0, 5)
        assert await offsets.persist()
        assert b'"counter":10' in await offsets.body()

    offsets = offsets_on(SimDisk())
    asyncio.run(main())


def test_offsets_of_a_slave_are_taken_where_they_are_larger_and_within_the_queue() -> None:
    offsets = offsets_on(SimDisk())
    offsets.commit("g", "T", 0, 4)
    offsets.commit("g", "T", 1, 4)
    offsets.advance_to({"T@g": {0: 6, 1: 3, 2: 99}, "U@h": {0: 0}}, lambda _topic, _queue_id: 8)
    assert offsets.of_topic("g", "T") == {0: 6, 1: 4, 2: 8}
    assert offsets.of_topic("h", "U") == {0: 0}


def test_slave_saves_the_position_of_its_masters_offsets_also_without_a_commit() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    offsets = offsets_on(disk, Log())
    offsets.begin_following()
    saved = []
    for position in (10, 20, 20 + FOLLOWED_LAG_BYTES_MAX):
        offsets.follow({}, (position, position), lambda _: 0)
        asyncio.run(offsets.persist())
        saved.append(offsets_on(disk).loaded_positions)

    last = 20 + FOLLOWED_LAG_BYTES_MAX
    assert saved == [(10, 10), (10, 10), (last, last)]
