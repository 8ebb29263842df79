"""Builds `shim.c`, and selects the call of a running broker that is to fail."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SOURCE: Final = Path(__file__).with_name("shim.c")

CALLS: Final = {1: "write", 2: "sync", 4: "truncate", 8: "open", 16: "rename", 32: "unlink"}
ALL: Final = sum(CALLS)
WRITES: Final = 1
REPEATED: Final = 1 | 2 | 4 | 8
"""Calls that Python repeats after EINTR."""

_CONTROL: Final = struct.Struct("6i q 256s")
_ARMED_AT: Final = 12
_INT: Final = struct.Struct("i")


def compiler() -> str | None:
    """Return the path of the C compiler; None if there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(directory: Path) -> Path:
    """Compile the shim into a directory; return the library's path."""
    found = compiler()
    assert found is not None, "no C compiler"
    library = directory / "shim.so"
    command = [found, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
    return library


class Shim:
    """Controls the shim in a broker that was started with `environ`."""

    def __init__(self, library: Path, store: Path, control: Path) -> None:
        control.write_bytes(bytes(_CONTROL.size))
        self.environ = {
            "LD_PRELOAD": str(library),
            "SHIM_ROOT": os.path.realpath(store),
            "SHIM_CONTROL": str(control),
        }
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)

    def arm(self, calls: int, nth: int, error: int) -> None:
        """Make the n-th of these calls from now on fail with the errno; 0: a short write."""
        _CONTROL.pack_into(self._map, 0, calls, nth, error, 0, 0, 0, 0, b"")
        _INT.pack_into(self._map, _ARMED_AT, 1)

    def disarm(self) -> None:
        """Make no further call fail."""
        _INT.pack_into(self._map, _ARMED_AT, 0)

    def hit(self) -> tuple[str, str, float] | None:
        """Return call, file and `time.monotonic` of the failed call; None if none has failed."""
        _, _, _, armed, _, call, at_ns, path = _CONTROL.unpack_from(self._map)
        if armed != 2:
            return None
        return CALLS[call], path.rstrip(b"\0").decode(), at_ns / 1e9

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._map.close()
