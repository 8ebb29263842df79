"""Child processes of the demo, each with its own log file, stopped by pid.

Each runs in its own session, so that Ctrl-C in the terminal reaches only the demo, which then stops
the children in order.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0
STOP_POLL_S: Final = 0.05
READ_BYTES: Final = 65_536


class ChildFailedError(Exception):
    """A process did not start, or ended unexpectedly; the text names its log."""


class Child:
    """A Python process; as a context manager it is stopped on exit."""

    def __init__(self, name: str, arguments: list[str], log_file: Path) -> None:
        self.name = name
        self._log_file = log_file
        self._unread = b""
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        """The standard output of the process."""
        assert self._process.stdout is not None
        return self._process.stdout

    def read_line(self, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
        """Return the next line of the process's output, a JSON object.

        Raises:
            ChildFailedError: the process ended, or printed no line within `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not self._read(max(0.0, deadline_s - time.monotonic())):
                raise ChildFailedError(self._failure(f"printed no line for {timeout_s:.0f} s"))
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def read_new_lines(self) -> list[dict[str, Any]]:
        """Return the lines that the process has printed since the last call; does not wait.

        Raises:
            ChildFailedError: the process ended.
        """
        while self._read(timeout_s=0):
            pass
        lines, _, self._unread = self._unread.rpartition(b"\n")
        return [json.loads(line) for line in lines.splitlines()]

    def end_input(self) -> None:
        """Close the standard input of the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def check(self) -> None:
        """Raise ChildFailedError if the process has ended."""
        if self._process.poll() is not None:
            raise ChildFailedError(self._failure("ended"))

    def kill(self) -> None:
        """Kill the process with -9, like a crash."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> None:
        """Wait for the end of the process.

        Raises:
            ChildFailedError: it did not end in time, or its exit code is not 0.
        """
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ChildFailedError(self._failure("does not end")) from None
        if code:
            raise ChildFailedError(self._failure("failed"))

    def stop(self) -> None:
        """Terminate the process and its own children; kill them after `STOP_TIMEOUT_S`.

        An exception meanwhile, such as a second Ctrl-C, kills them at once.
        """
        try:
            if self._process.poll() is None:
                os.killpg(self.pid, signal.SIGTERM)
            deadline_s = time.monotonic() + STOP_TIMEOUT_S
            while self._is_running() and time.monotonic() < deadline_s:
                time.sleep(STOP_POLL_S)
        finally:
            if self._is_running():
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self.end_input()
            self.output.close()

    def _is_running(self) -> bool:
        """Return whether the process, or one that it started in its group, still runs.

        Spark's Java process ends a moment after the Python process that started it.
        """
        self._process.poll()
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _read(self, timeout_s: float) -> bool:
        """Read what the process prints within a time; return whether there was anything.

        Raises:
            ChildFailedError: the process ended.
        """
        stream = self.output
        has_printed, _, _ = select.select([stream], [], [], timeout_s)
        if not has_printed:
            return False
        chunk = os.read(stream.fileno(), READ_BYTES)
        if not chunk:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            raise ChildFailedError(self._failure("ended early"))
        self._unread += chunk
        return True

    def _failure(self, what: str) -> str:
        code = self._process.poll()
        state = "is running" if code is None else f"exit code {code}"
        return f"{self.name} {what} ({state}); its log is {self._log_file}"


class Server:
    """`kourou serve` with name server and broker; it keeps store and ports after a crash."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._child, ready = self._start(port=0, name_server_port=0)
        self.name_server: str = ready["namesrv"]
        self._broker: str = ready["broker"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.stop()

    @property
    def pid(self) -> int:
        return self._child.pid

    def crash(self) -> float:
        """Kill the server with -9, start it again, and return the seconds of the outage."""
        started_at = time.perf_counter()
        self._child.kill()
        self._child, _ = self._start(_port(self._broker), _port(self.name_server))
        return time.perf_counter() - started_at

    def _start(self, port: int, name_server_port: int) -> tuple[Child, dict[str, Any]]:
        arguments = [
            *("-m", "kourou.cli.main", "serve", "--ready-json"),
            *("--store", str(self._directory / "store")),
            *("--port", str(port), "--namesrv-port", str(name_server_port)),
        ]
        child = Child("kourou serve", arguments, self._directory / "serve.log")
        try:
            return child, child.read_line()
        except BaseException:
            child.stop()
            raise


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
