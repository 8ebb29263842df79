"""Live checks verify the durable part of an open store and ignore concurrent changes."""

from __future__ import annotations

from kourou.store.tools.check import check_store
from kourou.store.tools.findings import CheckReport
from tests.store.rig import Rig, delete_topic

FIRST = "commitlog/00000000000000000000"


def used_store(count: int = 20) -> Rig:
    """Return an open store with messages below and above its checkpoint."""
    rig = Rig()
    for number in range(count):
        rig.put(b"%d" % number + b"x" * 300, topic="TU"[number % 2])
    for _ in range(6):
        rig.tick()
        rig.put(b"later")
    return rig


def live(rig: Rig) -> CheckReport:
    return check_store(rig.disk, live=True)


def test_live_check_accepts_durable_part_of_open_store() -> None:
    rig = used_store()
    report = live(rig)

    assert report.findings == []
    assert 20 <= report.records <= 26


def test_live_check_ignores_records_that_are_not_durable() -> None:
    rig = used_store()
    before = live(rig).records
    end = rig.append(b"half" + b"y" * 500).physical_offset
    rig.store.writer.write()
    rig.disk.write(f"commitlog/{end - end % 4096:020d}", end % 4096 + 200, [b"\0" * 100])

    report = live(rig)
    assert (report.findings, report.records) == ([], before)


def test_live_check_finds_damage_in_durable_records() -> None:
    rig = used_store()
    rig.disk.write(FIRST, 500, [b"?"])

    findings = live(rig).findings
    assert [f.file for f in findings if f.file == FIRST]


def test_live_check_verifies_queue_entries_of_durable_records() -> None:
    rig = used_store()
    rig.disk.write("consumequeue/T/0/00000000000000000000", 0, [b"\x11" * 20])

    assert [f.offset for f in live(rig).findings] == [0]


def test_live_check_accepts_new_store() -> None:
    assert live(Rig()).findings == []


def test_live_check_accepts_deleted_topic() -> None:
    rig = used_store()
    delete_topic(rig.store, "U")

    assert live(rig).findings == []


def test_live_check_changes_nothing_and_takes_no_lock() -> None:
    rig = used_store()
    seen: set[str] = set()
    rig.disk.on_operation = lambda operation, _: seen.add(operation)
    live(rig)

    assert not seen & {"write", "truncate", "unlink", "rename", "lock", "make_directory"}


def test_full_check_of_closed_store_agrees_with_live_check() -> None:
    rig = used_store()

    assert rig.problems() == []
    assert live(rig).findings == []
