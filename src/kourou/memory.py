"""Memory limit of this process: the machine's memory, or the limit of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_ROOT: Final = Path("/")


def memory_bytes(root: Path = _ROOT) -> int:
    """Return the machine's memory in bytes, or the smallest control group limit below that.

    Args:
        root: the directory that holds `proc` and `sys`.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((machine, *_limits(root)))


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's control groups (v1 and v2) and of their ancestors.

    In a container, `/proc/self/cgroup` may name the group by its path on the host, which does not
    exist below the container's mount. The container's own group is then found as the root of that
    mount.
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
