"""A check finds all differences between timer files and log; a rebuild repairs them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.store.timer.layouts import SLOT, SLOTS, UNIT_BYTES, encode_check
from kourou.store.timer.wheel_files import TIMER_CHECK, TIMER_WHEEL, read_check
from kourou.store.tools.check import check_store
from kourou.store.tools.info import store_info
from kourou.store.tools.rebuild import rebuild
from kourou.store.tools.truncate import plan_truncation, truncate_log
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.simulated_broker import SimulatedBroker
from tests.broker.delays.delay_rig import bodies, run
from tests.broker.timer.timer_rig import send_at
from tests.store.timer.test_timer_golden import java_s_timer

LOG = "timerlog/00000000000000000000"
FIRST_MS = EPOCH_MS + 100_500
SECONDS = 10
EACH = 3
TIMER = TimerConfig(timer_log_file_bytes=UNIT_BYTES * 20 + 16)


def waiting_store() -> SimDisk:
    """Return a closed store with 30 scheduled messages in 10 slots, one of them recalled."""

    async def fill(broker: SimulatedBroker) -> None:
        for second in range(SECONDS):
            for number in range(EACH):
                due_at_ms = FIRST_MS + second * 1000 + number
                await send_at(broker, b"%d-%d" % (second, number), due_at_ms)
        await send_at(broker, b"0", FIRST_MS, recalls="id-0-0", unique_id="id-0-0")
        await asyncio.sleep(1)

    return run(fill, timer=TIMER)


def slot_at(second_ms: int) -> int:
    return (second_ms // 1000) % SLOTS * SLOT.size


def overwrite(name: str, at: int, data: bytes) -> Callable[[SimDisk], None]:
    return lambda disk: disk.write(name, at, [data])


def unlink(name: str) -> Callable[[SimDisk], None]:
    return lambda disk: disk.unlink(name)


def truncate(name: str, size: int) -> Callable[[SimDisk], None]:
    return lambda disk: disk.truncate(name, size)


def rewrite(**numbers: int) -> Callable[[SimDisk], None]:
    return lambda disk: disk.write(
        TIMER_CHECK, 0, [encode_check(read_check(disk)._replace(**numbers))]
    )


def test_a_store_with_scheduled_messages_has_no_findings_and_their_count() -> None:
    disk = waiting_store()
    report, reported = check_store(disk), store_info(disk).timers

    assert (report.findings, report.timers) == ([], SECONDS * EACH - 1)
    assert reported is not None
    assert (reported.waiting, reported.behind, reported.log_files) == (SECONDS * EACH - 1, 0, 2)
    assert reported.first_at_ms == (FIRST_MS - 1) // 1000 * 1000
    assert reported.last_at_ms == reported.first_at_ms + (SECONDS - 1) * 1000


@pytest.mark.parametrize(
    ("damage", "file", "words"),
    [
        (overwrite(TIMER_WHEEL, slot_at(FIRST_MS), bytes(32)), TIMER_WHEEL, "in no slot"),
        (
            overwrite(TIMER_WHEEL, slot_at(FIRST_MS) + 27, b"\x09"),
            TIMER_WHEEL,
            "slot says .* 9 messages",
        ),
        (overwrite(TIMER_WHEEL, slot_at(FIRST_MS) + 15, b"\x01"), TIMER_WHEEL, "first unit 1,"),
        (overwrite(TIMER_WHEEL, slot_at(FIRST_MS) + 22, b"\x7f"), TIMER_WHEEL, "chain is broken"),
        (unlink(TIMER_WHEEL), TIMER_WHEEL, "file is missing"),
        (truncate(TIMER_WHEEL, 5), TIMER_WHEEL, "5 bytes long"),
        (overwrite(LOG, UNIT_BYTES, bytes(52)), TIMER_WHEEL, "no valid timer unit"),
        (overwrite(LOG, 3, b"\x07"), TIMER_WHEEL, "no valid timer unit"),
        (overwrite(LOG, 20, b"\x33"), TIMER_WHEEL, "is of second"),
        (overwrite(LOG, 34, b"\x33"), LOG, "there is no record of rmq_sys_wheel_timer"),
        (unlink(LOG), TIMER_WHEEL, "chain is broken"),
        (unlink(TIMER_CHECK), TIMER_CHECK, "is missing or empty"),
        (truncate(TIMER_CHECK, 100), TIMER_CHECK, "100 bytes long"),
        (overwrite(TIMER_CHECK, 2, b"\x03"), TIMER_CHECK, "checksum"),
        (overwrite(TIMER_CHECK, 14, b"\x04"), TIMER_CHECK, "checksum"),
        (rewrite(log_position=1 << 40), TIMER_CHECK, "ends at byte"),
        (
            rewrite(queue_offset=1 << 40),
            TIMER_CHECK,
            "is after the end of rmq_sys_wheel_timer, 31",
        ),
    ],
)
def test_damage_is_found_and_repaired_by_a_rebuild(
    damage: Callable[[SimDisk], None], file: str, words: str
) -> None:
    disk = waiting_store()
    damage(disk)
    findings = check_store(disk).findings

    assert [f for f in findings if f.file.startswith(file) and re.search(words, f.problem)], (
        findings
    )
    assert rebuild(disk, EPOCH_MS, pid=1).timers == SECONDS * EACH - 1
    assert check_store(disk).findings == []
    assert_all_come(disk)


@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_is_found_or_harmless_and_repaired_by_a_rebuild(seed: int) -> None:
    dice, disk = Random(seed), waiting_store()
    name = dice.choice([TIMER_WHEEL, LOG, LOG, TIMER_CHECK])
    at = {
        TIMER_WHEEL: slot_at(FIRST_MS) + dice.randrange(SECONDS * SLOT.size),
        LOG: dice.randrange(20 * UNIT_BYTES),
        TIMER_CHECK: dice.randrange(84),
    }[name]
    byte = disk.read(name, at, 1)[0] ^ 1 << dice.randrange(8)
    disk.write(name, at, [bytes([byte])])
    if check_store(disk).findings:
        rebuild(disk, EPOCH_MS + 1_000, pid=1)
        assert check_store(disk).findings == []
    assert_all_come(disk)


def test_a_recalled_message_is_dropped_by_a_rebuild_after_its_time() -> None:
    disk = waiting_store()
    past_ms = FIRST_MS + SECONDS * 1000

    assert rebuild(disk, past_ms, pid=1).timers == SECONDS * EACH - 1
    reported = store_info(disk).timers
    assert reported is not None
    assert reported.first_at_ms == reported.last_at_ms == past_ms // 1000 * 1000
    assert_all_come(disk, later_ms=past_ms - EPOCH_MS)


def test_messages_whose_delivery_is_truncated_wait_again() -> None:
    async def deliver_some(broker: SimulatedBroker) -> None:
        await asyncio.sleep(100 + SECONDS / 2)
        count = len(bodies(broker))
        assert EACH < count < SECONDS * EACH - 1
        entry = broker.store.reader.entry("T", 0, EACH)
        assert entry is not None
        cuts.append(entry.physical_offset)

    cuts: list[int] = []
    disk = run(deliver_some, waiting_store(), later_ms=2_000, timer=TIMER)
    plan = plan_truncation(disk, cuts[0], None)
    assert plan is not None
    truncate_log(disk, plan, EPOCH_MS + 110_000, pid=1)
    assert check_store(disk).findings == []
    assert_all_come(disk, later_ms=110_000)


def test_unreadable_timer_counts_are_found() -> None:
    disk = waiting_store()
    for name in ("config/timermetrics", "config/timermetrics.bak"):
        disk.write(name, 0, [b"?"])

    assert [one.file for one in check_store(disk).findings] == ["config/timermetrics"]


def assert_all_come(disk: SimDisk, later_ms: int = 2_000) -> None:
    """Assert that a broker delivers all messages except the recalled one, once and in order."""

    async def deliver(broker: SimulatedBroker) -> None:
        await asyncio.sleep(200)
        assert (
            bodies(broker)
            == [b"%d-%d" % (second, number) for second in range(SECONDS) for number in range(EACH)][
                1:
            ]
        )

    run(deliver, disk, later_ms=later_ms, timer=replace(TIMER, timer_log_file_bytes=1 << 20))


def test_a_message_not_in_the_wheel_yet_is_no_finding_and_counts_as_behind() -> None:
    disk = waiting_store()
    rewrite(queue_offset=read_check(disk).queue_offset - 4)(disk)
    reported = store_info(disk).timers

    assert reported is not None
    assert reported.behind == 4
    assert [one for one in check_store(disk).findings if "slot" in one.problem] == []


def test_changes_of_a_store_in_use_are_no_findings() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for number in range(60):
            due_at_ms = broker.clock.now_ms() + 300 + number * 110
            await send_at(broker, b"%d" % number, due_at_ms)
        for round_ in range(40):
            await asyncio.sleep(0.21)
            broker.commit.flush(broker.clock.now_ms())
            if round_ % 3 == 0:
                await broker.timers.storage.flush()
            assert check_store(broker.disk, live=True).findings == []
        assert len(bodies(broker)) == 60
        await send_at(broker, b"later", FIRST_MS + 1_000_000)
        await asyncio.sleep(1.3)
        await broker.timers.storage.flush()
        broker.disk.write(TIMER_WHEEL, slot_at(FIRST_MS + 1_000_000) + 27, [b"\x09"])
        [finding] = check_store(broker.disk, live=True).findings
        assert "slot says first unit" in finding.problem
        await send_at(broker, b"repaired", FIRST_MS + 1_000_000)  # rewrites its slot
        await asyncio.sleep(1)

    run(test, timer=TIMER)


def test_timer_files_of_java_have_no_findings() -> None:
    disk, reported = java_s_timer()
    report = check_store(disk)
    read_at_ms = reported["check_point"]["lastReadTimeMs"]
    slots = [one for one in reported["wheels"][0]["slots"] if one[1] * 1000 >= read_at_ms]

    assert [one for one in report.findings if "timer" in one.file] == []
    assert report.timers == sum(one[4] for one in slots)
