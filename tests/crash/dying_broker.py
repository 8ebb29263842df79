"""A broker process that kills itself with SIGKILL at a given disk operation.

    python dying_broker.py STORE OPERATION:PREFIX:COUNT:WHEN

kills it before or after (WHEN) the COUNT-th call of the operation on a file whose name begins with
PREFIX, counted from the end of the start; `never` instead does not kill it. The first line of the
output is the port.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker
from kourou.disk import OsDisk
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig

KIB = 1024
CONFIG = BrokerConfig(
    port=0,
    max_message_size_bytes=16 * KIB,
    pending_connection_bytes_max=1024 * KIB,
    consumer_offset_interval_ms=50,
    sync_flush_timeout_ms=60_000,
    store=StoreConfig(commitlog_segment_bytes=64 * KIB, consumequeue_file_bytes=2000),
)


class DyingDisk(OsDisk):
    """The real disk, which kills the process at the given operation.

    Attributes:
        counts: whether calls are counted.
    """

    def __init__(self, root: Path, point: str) -> None:
        super().__init__(root)
        self._operation, self._prefix, count, self._when = point.split(":")
        self._left = int(count)
        self.counts = False

    def write(self, name: str, offset: int, buffers: Any) -> None:
        self._call("write", name, lambda: super(DyingDisk, self).write(name, offset, buffers))

    def sync(self, name: str) -> None:
        self._call("sync", name, lambda: super(DyingDisk, self).sync(name))

    def pin(self, name: str) -> None:
        """Return None, so that each sync calls this disk."""

    def rename(self, old: str, new: str) -> None:
        self._call("rename", old, lambda: super(DyingDisk, self).rename(old, new))

    def _call(self, operation: str, name: str, call: Callable[[], None]) -> None:
        is_named = operation == self._operation and name.startswith(self._prefix)
        is_point = self.counts and is_named
        self._left -= is_point
        is_now = is_point and self._left == 0
        if is_now and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        call()
        if is_now:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(root: Path, point: str) -> None:
    disk = OsDisk(root) if point == "never" else DyingDisk(root, point)
    broker = Broker(CONFIG, disk, Runtime.system())
    _, port = await broker.start()
    if isinstance(disk, DyingDisk):
        disk.counts = True
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
    await stopped.wait()
    await broker.stop()
    disk.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
