"""`kourou` on a disk that is full for as long as a file named `full` lies beside the store.

    python fillable_disk.py serve --store DIR/store ...

Writes then take half of what they are given and fail, as on a real disk whose last block is gone.
For those who may not mount a small one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from kourou.cli import process
from kourou.cli.main import main
from kourou.disk import OsDisk


class FillableDisk(OsDisk):
    """The real disk; nothing more fits on it while the file is there."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._sign = root.with_name("full")

    def free_bytes(self) -> int:
        return 0 if self._sign.exists() else super().free_bytes()

    def write(
        self, name: str, offset: int, buffers: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        if self._sign.exists():
            data = b"".join(buffers)
            super().write(name, offset, [data[: len(data) // 2]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(name, offset, buffers)


if __name__ == "__main__":
    process.OsDisk = FillableDisk  # type: ignore[assignment,attr-defined]
    main()
