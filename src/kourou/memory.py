"""How much memory this process may use: the machine's, or what its control groups leave it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_ROOT: Final = Path("/")


def memory_bytes(root: Path = _ROOT) -> int:
    """Return the bytes of memory of the machine, or the least that a control group allows.

    Args:
        root: where `/proc` and `/sys` are.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((machine, *_limits(root)))


def _limits(root: Path) -> Iterator[int]:
    """Return the limits of the process's control groups (both versions) and of those above them.

    A group whose path is told as the host sees it is not found in a container; the one that is
    mounted as the topmost there is.
    """
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                mount, name = root / "sys/fs/cgroup", "memory.max"
            elif "memory" in controllers.split(","):
                mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            else:
                continue
            group = PurePosixPath(path.removeprefix("/"))
            for one in (group, *group.parents):
                with suppress(OSError, ValueError):  # no such group; "max"
                    yield int((mount / one / name).read_text())
