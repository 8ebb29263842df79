"""`kourou` on a disk that is full, or broken, for as long as a file of that name lies beside it.

    python fillable_disk.py serve --store DIR/store ...

DIR/full      writes take half of what they are given and fail, as on a real disk whose last block
              is gone; for those who may not mount a small one
DIR/unsynced  syncs of the log fail once each, as on a device that loses writes
DIR/unwritten writes to the log fail, as on a device that is gone
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from kourou.cli import process
from kourou.cli.main import main
from kourou.disk import OsDisk
from kourou.store.paths import COMMITLOG


class FillableDisk(OsDisk):
    """The real disk; nothing more fits on it while the file is there."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._sign = root.with_name("full")
        self._unsynced = root.with_name("unsynced")
        self._unwritten = root.with_name("unwritten")

    def free_bytes(self) -> int:
        return 0 if self._sign.exists() else super().free_bytes()

    def write(
        self, name: str, offset: int, buffers: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        if self._sign.exists():
            data = b"".join(buffers)
            super().write(name, offset, [data[: len(data) // 2]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if name.startswith(COMMITLOG) and self._unwritten.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write(name, offset, buffers)

    def sync(self, name: str) -> None:
        if name.startswith(COMMITLOG) and self._unsynced.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(name)

    def pinned(self, name: str) -> None:
        """Return none: each sync is to go by this disk."""


if __name__ == "__main__":
    process.OsDisk = FillableDisk  # type: ignore[assignment,attr-defined]
    main()
