"""A store in use is verified as far as it is durable, and what goes on meanwhile is no finding."""

from __future__ import annotations

from kourou.store.tools.check import check_store
from kourou.store.tools.findings import CheckReport
from tests.store.rig import Rig, delete_topic

FIRST = "commitlog/00000000000000000000"


def used_store(count: int = 20) -> Rig:
    """Return an open store whose checkpoint names its messages, and some more that it does not."""
    rig = Rig()
    for number in range(count):
        rig.put(b"%d" % number + b"x" * 300, topic="TU"[number % 2])
    for _ in range(6):
        rig.tick()
        rig.put(b"later")
    return rig


def live(rig: Rig) -> CheckReport:
    return check_store(rig.disk, live=True)


def test_a_store_in_use_is_in_order_up_to_what_is_durable() -> None:
    rig = used_store()
    report = live(rig)

    assert report.findings == []
    assert 20 <= report.records <= 26


def test_what_is_not_durable_yet_is_no_finding() -> None:
    rig = used_store()
    before = live(rig).records
    end = rig.append(b"half" + b"y" * 500).physical_offset
    rig.store.write()
    rig.disk.write(f"commitlog/{end - end % 4096:020d}", end % 4096 + 200, [b"\0" * 100])

    report = live(rig)
    assert (report.findings, report.records) == ([], before)


def test_damage_in_what_is_durable_is_found() -> None:
    rig = used_store()
    rig.disk.write(FIRST, 500, [b"?"])

    findings = live(rig).findings
    assert [f.file for f in findings if f.file == FIRST]


def test_a_queue_entry_of_a_durable_record_is_verified() -> None:
    rig = used_store()
    rig.disk.write("consumequeue/T/0/00000000000000000000", 0, [b"\x11" * 20])

    assert [f.offset for f in live(rig).findings] == [0]


def test_a_new_store_in_use_is_in_order() -> None:
    assert live(Rig()).findings == []


def test_a_topic_that_was_deleted_is_no_finding() -> None:
    rig = used_store()
    delete_topic(rig.store, "U")

    assert live(rig).findings == []


def test_a_live_check_changes_nothing_and_takes_no_lock() -> None:
    rig = used_store()
    seen: set[str] = set()
    rig.disk.on_operation = lambda operation, _: seen.add(operation)
    live(rig)

    assert not seen & {"write", "truncate", "unlink", "rename", "lock", "make_directory"}


def test_a_whole_check_of_a_closed_store_agrees() -> None:
    rig = used_store()

    assert rig.problems() == []
    assert live(rig).findings == []
