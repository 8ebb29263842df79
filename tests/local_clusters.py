"""A running `kourou cluster`, with its events."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kourou.testing.process import start_command

PATIENCE_S: Final = 120.0
"""Only ends a test that hangs: a busy machine may take many times the usual seconds."""


_PAUSE_S: Final = 0.05


class LocalCluster:
    """Runs `kourou cluster --json`. Leaving its `with` block kills what still runs.

    Attributes:
        events: all events that were read, oldest first.
    """

    def __init__(
        self, directory: Path, *options: str, environ: Mapping[str, str] | None = None
    ) -> None:
        words = ("cluster", "--dir", str(directory), "--namesrv-port", "0", "--json", *options)
        self.process: subprocess.Popen[str] = start_command(*words, environ=environ)
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def send_until_event(self, number: signal.Signals, event: str) -> None:
        """Send a signal again and again until an event of this name comes."""
        while not self.of(event):
            self.process.send_signal(number)
            with suppress(queue.Empty):
                self._take(self._lines.get(timeout=0.2))

    def wait(self, event: str, child: str | None = None) -> dict[str, Any]:
        """Return the next event of this name, of this child if one is named.

        Raises:
            AssertionError: the process ended before; the text contains its stderr.
        """
        while True:
            found = self._take(self._lines.get(timeout=PATIENCE_S))
            if found["event"] == event and child in (None, found.get("child")):
                return found

    def _take(self, line: str) -> dict[str, Any]:
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"it ended: {self.process.stderr.read()}")
        found: dict[str, Any] = json.loads(line)
        self.events.append(found)
        return found

    def ready(self) -> dict[str, Any]:
        """Return the event of a cluster whose processes all serve."""
        return self.wait("cluster.ready")

    @property
    def pids(self) -> dict[str, int]:
        """The last pid of each process, from the events read so far."""
        return {one["child"]: one["pid"] for one in self.of("child.started")}

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the events of this name that were read so far."""
        return [one for one in self.events if one["event"] == event]

    def kill(self, child: str) -> None:
        """Kill a process of the cluster by -9, and return when another one serves."""
        os.kill(self.pids[child], signal.SIGKILL)
        ended = self.wait("child.ended", child)
        assert ended["exit_code"] == -signal.SIGKILL
        self.wait("child.ready", child)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, read all events, and return the exit code."""
        self.process.send_signal(number)
        self.wait("cluster.stopped")
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()  # its processes end with it
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        wait_until(lambda: not any(map(is_alive, self.pids.values())))


def is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when a condition of other processes holds.

    Raises:
        TimeoutError: it never did.
    """
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / _PAUSE_S)):
        if condition():
            return
        pause.wait(_PAUSE_S)
    raise TimeoutError(f"not within {PATIENCE_S:.0f} s")
