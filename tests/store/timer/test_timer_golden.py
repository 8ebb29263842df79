"""Timer files of a Java store: its scheduled messages are delivered by this broker."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections import Counter
from typing import Any

from kourou.store.timer.layouts import SLOT, TimerCheck, TimerUnit, encode_unit
from kourou.store.timer.timer_files import TimerFiles
from kourou.testing.disk import SimDisk
from tests.store.golden import FOLDER, load

NOW_MS = 1_795_227_500_000


def java_s_timer() -> tuple[SimDisk, dict[str, Any]]:
    """Return a disk with Java's timer files and log, and what Java's store library reads there."""
    disk = load("clean").disk
    with zipfile.ZipFile(FOLDER / "clean_timer.zip") as archive:
        for name in archive.namelist():
            data = archive.read(name)
            disk.make_directory(name.rpartition("/")[0])
            disk.truncate(name, len(data))
            for at in range(0, len(data), 1 << 16):
                if any(data[at : at + (1 << 16)]):
                    disk.write(name, at, [data[at : at + (1 << 16)]])
    reported = json.loads(gzip.decompress((FOLDER / "clean_timer.json.gz").read_bytes()))
    return disk, reported


def opened(disk: SimDisk, *, was_clean: bool) -> TimerFiles:
    files = TimerFiles(disk, 1 << 20)
    assert files.rebuild_reason(files.check.queue_offset, 0, was_kourou=False) is None
    files.recover(NOW_MS, lambda _: None, was_clean=was_clean)
    return files


def test_javas_wheel_and_timer_log_are_loaded_unchanged() -> None:
    disk, reported = java_s_timer()
    files = opened(disk, was_clean=True)
    check = reported["check_point"]
    assert files.check == TimerCheck(
        check["lastReadTimeMs"],
        check["lastTimerLogFlushPos"],
        check["lastTimerQueueOffset"],
        check["masterTimerQueueOffset"],
        check["stateVersion"],
        check["timestamp"],
        check["counter"],
    )
    first = check["lastReadTimeMs"] // 1000
    slots = [one[1:5] for one in reported["wheels"][0]["slots"] if one[1] >= first]
    assert sorted(map(list, files.wheel.slots())) == sorted(slots)
    units = [(one[0], TimerUnit(*one[1:])) for one in reported["log"] if isinstance(one, list)]
    assert list(files.log.scan(0)) == units
    by_second = Counter(unit.second for _, unit in units)
    for slot in files.wheel.slots():
        assert len(list(files.log.chain(slot.last))) == by_second[slot.second]
    for position, unit in units:
        name, at = files.log.segments.name(position), position % files.log.segments.file_bytes
        assert disk.read(name, at, 52) == encode_unit(unit)


def test_a_wrong_count_in_a_slot_of_java_is_corrected() -> None:
    disk, _ = java_s_timer()
    files = opened(disk, was_clean=True)
    count = files.wheel.count
    slot = max(files.wheel.slots())
    disk, _ = java_s_timer()
    at = files.wheel.file_offset_of(slot.second)
    disk.write("timerwheel", at, [SLOT.pack(*slot._replace(first=slot.last + 1, messages=77), 0)])

    again = opened(disk, was_clean=False)
    assert again.wheel.slot(slot.second) == slot
    assert again.wheel.count == count
