"""Helpers for recovery tests: fill a store over several segments, and remove its queues."""

from __future__ import annotations

from kourou.testing.disk import SimDisk
from tests.store.rig import Rig

FIRST_SEGMENT = "commitlog/00000000000000000000"


def fill(rig: Rig, count: int = 20, size: int = 700) -> list[bytes]:
    """Store `count` messages in queue 0 of T, over several segments; return their bodies."""
    bodies = [b"%03d" % number + b"x" * size for number in range(count)]
    for body in bodies:
        rig.put(body)
    return bodies


def remove_queues(disk: SimDisk, directory: str = "consumequeue") -> None:
    for name in disk.list(directory):
        if name.isdecimal() and len(name) == 20:
            disk.unlink(f"{directory}/{name}")
        else:
            remove_queues(disk, f"{directory}/{name}")
