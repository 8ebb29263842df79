"""After a power cut at any point, all synced records exist, in order and without a hole.

Each run draws a list of steps, crashes at a drawn operation of the disk (any read, write, sync,
creation or removal), reopens the store, possibly with a crash during the recovery, and compares the
contents. The steps include failed writes, full disks and failed syncs.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.testing.disk import SimDisk
from tests.effort import some
from tests.torture.steps import PowerLostError, Run, assert_survives_power_loss


@settings(max_examples=200)
@given(seed=st.integers(0, 1 << 40))
def test_a_crash_anywhere_loses_nothing_durable_and_leaves_no_hole(seed: int) -> None:
    assert_survives_power_loss(seed)


PLAIN_RUN = [
    *[("append", n) for n in range(12)], ("sync", 0), ("show_synced", 0), ("flush", 0),
    *[("append", n) for n in range(9)], ("sync", 0), ("show_synced", 0), ("flush", 0),
    *[("append", n) for n in range(20)], ("write", 0), ("show_written", 0), ("flush", 0),
    ("append", 5), ("sync", 0), ("restart", 0), ("append", 7), ("sync", 0), ("show_synced", 0),
]  # fmt: skip


def operations_of_plain_run() -> int:
    run = Run(SimDisk())
    run.open()
    for step in PLAIN_RUN:
        run.do(step)
    return run.disk.operations


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_a_crash_at_each_operation_of_a_plain_run_loses_nothing_durable(seed: int) -> None:
    for crash_at in range(operations_of_plain_run()):
        run = Run(SimDisk(seed * 10_007 + crash_at))
        run.lose_power(crash_at)
        try:
            run.open()
            for step in PLAIN_RUN:
                run.do(step)
        except PowerLostError:
            pass
        run.start_after_power_loss([])
        run.assert_synced_stored()
