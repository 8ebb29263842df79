"""Tools on damaged stores succeed or raise a KourouError."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from kourou.errors import KourouError
from kourou.store.log.log_walk import LogPiece
from kourou.store.tools.check import check_store
from kourou.store.tools.dump import dump_file, kind_of
from kourou.store.tools.export import Selection, export_messages
from kourou.store.tools.info import store_info
from kourou.store.tools.rebuild import rebuild
from kourou.store.tools.truncate import plan_truncation, truncate_log
from kourou.testing.disk import SimDisk
from tests.documented_errors import only_raises
from tests.store import golden
from tests.store.rig import Rig


def small_store() -> SimDisk:
    rig = Rig()
    for number in range(30):
        rig.put(b"%d" % number + b"x" * 200, topic="TU"[number % 2], queue_id=number % 3)
    rig.store.close(rig.now_ms)
    return rig.disk


def files_of(disk: SimDisk, directory: str = "") -> list[str]:
    """Return the names of all files."""
    found = []
    for name in disk.list(directory):
        path = f"{directory}/{name}" if directory else name
        inner = files_of(disk, path)
        found += inner or [path]
    return [name for name in found if not name.endswith("lock")]


def damage(disk: SimDisk, dice: random.Random) -> str:
    """Damage one file in one way; return a description."""
    name = dice.choice(files_of(disk))
    try:
        size = disk.size(name)
    except OSError:
        return f"nothing, {name} is a directory"
    kind = dice.choice(("flip", "junk", "zeros", "cut", "grow", "unlink", "empty", "swap"))
    used = len(disk.read(name, 0, size).rstrip(b"\0"))
    at = dice.randrange(max(1, used))
    if kind == "flip" and used:
        byte = disk.read(name, at, 1)[0] ^ (1 << dice.randrange(8))
        disk.write(name, at, [bytes([byte])])
    elif kind == "junk":
        disk.write(name, at, [dice.randbytes(dice.choice((1, 8, 40, 500)))])
    elif kind == "zeros":
        disk.write(name, at, [bytes(dice.choice((4, 30, 600)))])
    elif kind == "cut":
        disk.truncate(name, at)
    elif kind == "grow":
        disk.truncate(name, size + dice.choice((1, 20, 4096)))
    elif kind == "unlink":
        disk.unlink(name)
    elif kind == "empty":
        disk.truncate(name, 0)
    else:
        other = dice.choice(files_of(disk))
        with suppress(OSError):
            disk.write(name, 0, [disk.read(other, 0, 4096)])
    return f"{kind} {name} at {at}"


def assert_read_only_tools_succeed(disk: SimDisk, case: str = "") -> None:
    """Assert that no read-only tool raises an error."""
    with only_raises(case=case):
        store_info(disk)
        check_store(disk)
        check_store(disk, live=True)
        for name in files_of(disk):
            kind = kind_of(name)
            if kind is None:
                assert name.startswith("compaction/"), name
                continue
            with suppress(IsADirectoryError):
                for row in dump_file(disk, name, kind):
                    json.dumps(row, default=str)
        list(export_messages(disk, Selection(with_system=True)))
        plan_truncation(disk, None)


def bodies(disk: SimDisk) -> set[tuple[str, int, bytes]]:
    rows = export_messages(disk, Selection())
    return {(r["topic"], r["queue_id"], r["body"]) for r in rows if not isinstance(r, LogPiece)}


@pytest.mark.parametrize("seed", range(70))
def test_read_only_tools_survive_any_damage(seed: int) -> None:
    dice = random.Random(seed)
    disk = small_store()
    done = [damage(disk, dice) for _ in range(dice.choice((1, 1, 2, 5)))]

    assert_read_only_tools_succeed(disk, case=f"seed {seed}: {done}")


@pytest.mark.parametrize("seed", range(70))
def test_repair_tools_repair_or_report_an_error(seed: int) -> None:
    dice = random.Random(seed)
    disk = small_store()
    done = [damage(disk, dice) for _ in range(dice.choice((1, 1, 2, 4)))]
    before = bodies(disk)

    with only_raises(KourouError, case=f"seed {seed}: {done}"):
        rebuild(disk, 2_000_000, pid=1)
        assert bodies(disk) == before, "a rebuild loses no message"
        plan = plan_truncation(disk, None)
        if plan is not None:
            truncate_log(disk, plan, 2_000_000, pid=1)
        findings = check_store(disk).findings
        assert not [f for f in findings if not f.file.startswith("config/")], findings


@pytest.mark.parametrize("name", golden.NAMES)
def test_read_only_tools_accept_each_recorded_store(name: str) -> None:
    assert_read_only_tools_succeed(golden.load(name).disk)


@pytest.mark.parametrize("seed", range(12))
def test_read_only_tools_survive_damaged_java_stores(seed: int) -> None:
    dice = random.Random(seed)
    disk = golden.load(golden.NAMES[seed % len(golden.NAMES)]).disk
    done = [damage(disk, dice) for _ in range(4)]

    assert_read_only_tools_succeed(disk, case=f"seed {seed}: {done}")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda disk: disk.make_directory("commitlog/00000000000000004096x"),
        lambda disk: disk.make_directory("consumequeue/T/0/00000000000000000160/x"),
        lambda disk: disk.write("commitlog/00000000000000000007", 0, [b"?"]),
        lambda disk: disk.write("consumequeue/T/99999999999999999999999/x", 0, [b"?"]),
        lambda disk: disk.write("config/kourou-store.json", 0, [b"[" * 5000]),
    ],
)
def test_tools_survive_unexpected_file_names(break_it: Callable[[SimDisk], object]) -> None:
    disk = small_store()
    with suppress(OSError):
        break_it(disk)

    assert_read_only_tools_succeed(disk)
