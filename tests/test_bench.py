"""Tests of the benchmarks: goals, selection of samples, and analysis of stacks."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from bench import machine
from bench.load_generator import is_alone
from bench.question import Figure
from bench.recovery import StoreToBuild, build
from bench.stack_sampler import folded
from bench.stacks import KERNEL, LOOP, costs
from kourou.disk import OsDisk
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore

LOOP_FRAME = "run (/usr/lib/python3.11/asyncio/runners.py:86)"
READ = "buffer_updated (/x/src/kourou/remoting/connection.py:50)"
SEND = "handle (/x/src/kourou/broker/sending/send.py:9)"


def test_rate_goal_is_a_ratio_to_java() -> None:
    rate = Figure("rate", "messages/s", is_more_better=True, ratio=3)
    assert rate.is_held(30.0, 10.0) is True
    assert rate.is_held(29.0, 10.0) is False
    assert rate.is_held(30.0, None) is None, "nothing to compare with"


def test_cpu_ratio_is_inverted() -> None:
    cpu = Figure("server CPU", "us/message", ratio=4)
    assert cpu.times_better(15.0, 60.0) == 4
    assert cpu.is_held(16.0, 60.0) is False


def test_limit_goal_does_not_depend_on_java() -> None:
    p99 = Figure("p99", "ms", limit=10)
    assert p99.is_held(10.0, None) is True
    assert p99.is_held(10.1, 100.0) is False


def test_both_goals_must_be_met() -> None:
    start = Figure("start", "s", ratio=5, limit=1)
    assert start.is_held(0.9, 4.0) is False
    assert start.is_held(0.8, 4.0) is True


@pytest.mark.parametrize(
    ("other_s", "steal_s", "expected"), [(0.1, 0.0, True), (0.5, 0.0, False), (0.0, 0.1, False)]
)
def test_run_is_alone_only_on_an_idle_machine(
    other_s: float, steal_s: float, *, expected: bool
) -> None:
    report = {"secs": 2.0, "other_cpu_s": other_s, "steal_s": steal_s}
    assert is_alone(report) is expected


@pytest.mark.parametrize(
    ("config_args", "prefix", "expected"),
    [
        ("'--enable-shared'", "/root/.pyenv/versions/3.13.0", "no PGO, no LTO"),
        ("'--enable-optimizations' '--with-lto'", "/usr/local", "PGO, LTO"),
        ("'--enable-optimizations' '--with-lto=full'", "/opt/python", "PGO, LTO"),
        ("'--enable-optimizations' '--with-lto=no'", "/opt/python", "PGO, no LTO"),
        ("'--enable-shared'", "/usr", "the system's (Debian builds with PGO and LTO)"),
    ],
)
def test_machine_line_names_the_build_of_python(
    config_args: str, prefix: str, expected: str
) -> None:
    assert machine.python_build(config_args, prefix) == expected
    found = machine.describe() | {"build": expected}
    assert f"Python {platform.python_version()} ({expected})" in machine.line(found)


def test_time_is_attributed_to_the_innermost_layer() -> None:
    dumps = "dumps (/usr/lib/python3.11/json/__init__.py:183)"
    stacks = [f"{LOOP_FRAME};{READ};{SEND};{dumps} 3\n", f"{LOOP_FRAME};{READ} 1\n"]
    found = costs(stacks, user=4, kernel=0)
    assert found.layers == {"broker": 3, "remoting": 1}
    assert found.below["buffer_updated (remoting/connection.py)"] == 4
    assert found.own["dumps (json/__init__.py)"] == 3


def test_kernel_time_is_distributed_over_kernel_samples_with_their_callers() -> None:
    stacks = [f"{LOOP_FRAME};{READ};__libc_send (libc.so.6) 7", f"{LOOP_FRAME};{READ} 3"]
    found = costs(stacks, user=6, kernel=4)
    assert found.layers == {KERNEL: 4, "remoting": 6}
    assert found.own["send, by buffer_updated (remoting/connection.py)"] == 4
    assert found.below["buffer_updated (remoting/connection.py)"] == 10


def test_without_native_frames_kernel_time_is_the_callers() -> None:
    assert costs([f"{LOOP_FRAME};{READ} 3"], user=6, kernel=4).layers == {"remoting": 10}


@pytest.mark.parametrize("leaf", ["epoll_pwait (libc.so.6)", "os_read (python);read (libc.so.6)"])
def test_waiting_thread_takes_no_time(leaf: str) -> None:
    found = costs([f"{LOOP_FRAME};{leaf} 9", f"{LOOP_FRAME};{READ} 1"], user=1, kernel=0)
    assert found.samples == 1
    assert found.waits.total() == 9


def test_time_outside_of_kourou_is_the_loops() -> None:
    stacks = [f"serve (/x/src/kourou/cli/process.py:60);{LOOP_FRAME} 5"]
    assert costs(stacks, user=1, kernel=0).layers == {LOOP: 1}


def test_invalid_stack_line_is_ignored() -> None:
    assert costs(["", "no count", "7"], user=1, kernel=1).samples == 0


def test_no_frame_is_no_stack() -> None:
    assert folded(None) is None


def test_store_to_recover_is_abandoned_just_before_its_checkpoint(tmp_path: Path) -> None:
    config = StoreConfig(commitlog_segment_bytes=1 << 20, message_index_enable=False)
    build(tmp_path, StoreToBuild("small", config, size_bytes=1, queues=3, rate=10))
    disk = OsDisk(tmp_path)
    store = MessageStore.open(disk, config, 0, pid=os.getpid())
    interval_s = config.queue_sync_interval_ms // 1000
    assert 10 * (interval_s - 2) <= store.recovery.records_scanned <= 10 * (interval_s + 2)
    store.abandon()
    disk.close()
