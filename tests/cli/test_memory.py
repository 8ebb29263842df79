"""The memory limit is the machine's memory or the smallest limit of a control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kourou.cli.machine import memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/a/b\n", {"a/b/memory.max": "4096\n"}, 4096, id="its own"),
        pytest.param(
            "0::/a/b\n",
            {"a/b/memory.max": "9000\n", "a/memory.max": "7000\n"},
            7000,
            id="the one above",
        ),
        pytest.param("0::/a\n", {"a/memory.max": "max\n"}, MACHINE, id="no limit"),
        pytest.param("0::/\n", {"memory.max": "5000\n"}, 5000, id="a container's"),
        pytest.param(
            "3:cpu:/a\n2:cpuset,memory:/on/the/host\n0::/\n",
            {"memory/memory.limit_in_bytes": "6000\n", "cpu/a/memory.limit_in_bytes": "1\n"},
            6000,
            id="the first version",
        ),
        pytest.param("0::/a\n", {"a/memory.max": f"{MACHINE + 1}\n"}, MACHINE, id="more than is"),
        pytest.param("0::/a\n", {}, MACHINE, id="nothing told"),
    ],
)
def test_smallest_limit_is_used(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    root = written(tmp_path, {"proc/self/cgroup": groups})
    written(root / "sys/fs/cgroup", files)
    assert memory_bytes(root) == expected


def test_machine_memory_is_used_without_control_groups(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) == MACHINE
    assert 0 < memory_bytes() <= MACHINE
