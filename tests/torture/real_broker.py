"""A real `kourou serve` process on a store with small files, which can be restarted."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kourou.disk import OsDisk
from kourou.store.tools.check import check_store
from kourou.testing.process import Outcome, Serving
from tests.held_ports import held_ports

SETTINGS: Final = (
    "freeBytesMin=1\n"
    "mappedFileSizeCommitLog=256 KiB\n"
    "mappedFileSizeConsumeQueue=20000\n"
    "maxMessageSize=64 KiB\n"
    "flushConsumerOffsetInterval=200\n"
    "flushConsumeQueueThoroughInterval=1000\n"
)


class RealBroker:
    """The store, its settings, and the current process.

    Attributes:
        store: the store's directory.
        serving: the current process.
        ready_s: duration of the last start, until clients could connect.
    """

    def __init__(
        self,
        directory: Path,
        *,
        environ: Mapping[str, str] | None = None,
        name: str = "store",
        settings: str = "",
    ) -> None:
        self.store = directory / name
        self._config = directory / "broker.conf"
        self._config.write_text(SETTINGS + settings)
        self._environ = environ
        self._holding = ExitStack()
        self._port, self._namesrv_port = self._holding.enter_context(held_ports(2))
        self.ready_s = 0.0
        self.serving = self._start()

    def _start(self) -> Serving:
        began_s = time.perf_counter()
        serving = Serving.start(
            self.store,
            *("--config", str(self._config), "--console-port", "0", "--log-level", "error"),
            port=self._port,
            namesrv_port=self._namesrv_port,
            environ=self._environ,
        )
        self.ready_s = time.perf_counter() - began_s
        return serving

    def start(self) -> None:
        """Start the broker again on the same ports; the previous process must have ended."""
        self.serving = self._start()

    def kill(self) -> None:
        """Kill the process with -9."""
        self.serving.stop(signal.SIGKILL)

    def stop(self) -> Outcome:
        """Stop the process cleanly."""
        return self.serving.stop()

    def findings(self) -> list[str]:
        """Return the findings of a store check; the process must have ended."""
        disk = OsDisk(self.store)
        try:
            return [f"{f.file} at {f.offset}: {f.problem}" for f in check_store(disk).findings]
        finally:
            disk.close()

    def end(self) -> None:
        """Kill the process in any state, and release its ports."""
        self.serving.process.kill()
        self.serving.process.communicate()
        self._holding.close()


async def troubles(console: str) -> list[str]:
    """Return the problems reported by /readyz; empty if the broker is ready."""
    host, _, port = console.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    status, _, _ = answer.partition("\r\n")
    return [] if " 200 " in status else [answer.partition("\r\n\r\n")[2]]
