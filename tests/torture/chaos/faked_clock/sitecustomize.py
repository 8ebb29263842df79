# ruff: noqa: TID251 - this is the clock
"""Shifts the wall clock of a process that has this directory in PYTHONPATH.

Python imports this module at start-up. `CHAOS_CLOCK` names a file with one number: the offset of
the wall clock in nanoseconds. Other clocks and the times of files are not changed.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path


def _move(path: Path) -> None:
    with path.open("rb") as file:
        shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    ahead = struct.Struct("q").unpack_from
    right_ns: Callable[[], int] = time.time_ns
    time.time_ns = lambda: right_ns() + ahead(shared)[0]
    time.time = lambda: time.time_ns() / 1e9


_move(Path(os.environ["CHAOS_CLOCK"]))
