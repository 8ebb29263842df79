"""`kourou` on a disk that fails while a file with a special name exists beside the store.

    python fillable_disk.py serve --store DIR/store ...

DIR/full      writes store half of the data and fail, like on a full disk; for users without the
              permission to mount a small file system
DIR/unsynced  syncs of the log fail, like on a device that loses writes
DIR/unwritten writes to the log fail, like on a removed device
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
    """The real disk, with errors while one of the special files exists."""

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

    def pin(self, name: str) -> None:
        """Return None, so that each sync calls this disk."""


if __name__ == "__main__":
    process.OsDisk = FillableDisk  # type: ignore[assignment,attr-defined]
    main()
