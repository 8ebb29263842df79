"""Real Kourou processes for tests: `kourou serve`, and commands that run to their end.

For behaviour that a simulation cannot show: signals, kill -9, ports, files, the command line. Use
it as a fixture:

    @pytest.fixture(scope="session")
    def namesrv(tmp_path_factory):
        with Serving.start(tmp_path_factory.mktemp("kourou")) as serving:
            yield serving.namesrv
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_KOUROU: Final = (sys.executable, "-m", "kourou.cli.main")
_STOP_TIMEOUT_S: Final = 60.0
_COMMAND_TIMEOUT_S: Final = 120.0
"""Both only end hung processes: a busy machine may take many times the usual second."""


@dataclass(frozen=True)
class Outcome:
    """Result of a command: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


class Serving:
    """A running server that accepts connections. Leaving its `with` block stops it.

    Attributes:
        process: the process; its stdout and stderr are pipes.
        ready: the JSON object that it printed when it was ready.
    """

    def __init__(self, process: subprocess.Popen[str], ready: Mapping[str, object]) -> None:
        self.process = process
        self.ready = ready

    @classmethod
    def start(
        cls,
        store: Path,
        *options: str,
        port: int = 0,
        namesrv_port: int = 0,
        environ: Mapping[str, str] | None = None,
        grpc: bool = False,
    ) -> Serving:
        """Start `kourou serve` on `store` and return when clients can connect.

        gRPC clients only with `grpc`: protobuf takes 0.1 s of each start.

        Raises:
            AssertionError: the process ended before it was ready; the text contains its stderr.
        """
        ports: tuple[str, ...] = ("--port", str(port), "--namesrv-port", str(namesrv_port))
        if not grpc:
            ports = (*ports, "--no-grpc")
        # stderr is not read while it runs: with more log entries the pipe could fill and block.
        level = ("--log-level", "warning")
        return cls._ready(
            start_command(
                *("serve", "--store", str(store), *ports, *level, "--ready-json", *options),
                environ=environ,
            )
        )

    @classmethod
    def start_proxy(
        cls, namesrv: str, home: Path, *options: str, port: int = 0, remoting_port: int = 0
    ) -> Serving:
        """Start `kourou serve proxy` and return when clients can connect.

        Args:
            namesrv: `host:port` of the name server.
            home: directory of its certificate.
            options: of the command.
            port: for gRPC clients; the console's port is free if this is 0.
            remoting_port: for remoting clients.

        Raises:
            AssertionError: the process ended before it was ready; the text contains its stderr.
        """
        return cls._ready(
            start_command(
                *("serve", "proxy", "--name-server", namesrv, "--grpc-port", str(port)),
                *("--remoting-port", str(remoting_port)),
                *("--log-level", "warning", "--ready-json", *options),
                environ={"KOUROU_PROXY_HOME": str(home)},
            )
        )

    @classmethod
    def start_controller(cls, *options: str, port: int = 0) -> Serving:
        """Start `kourou controller` and return when it listens.

        Args:
            options: of the command; they name the place of its state.
            port: for brokers and tools; 0 chooses a free one.

        Raises:
            AssertionError: the process ended before it was ready; the text contains its stderr.
        """
        return cls._ready(
            start_command(
                *("controller", "--port", str(port), "--no-console"),
                *("--log-level", "error", "--ready-json", *options),
            )
        )

    @classmethod
    def start_namesrv(cls, directory: Path, *options: str, port: int = 0) -> Serving:
        """Start `kourou serve namesrv` and return when clients can connect.

        Raises:
            AssertionError: the process ended before it was ready; the text contains its stderr.
        """
        words = ("serve", "namesrv", "--dir", str(directory), "--port", str(port))
        return cls._ready(start_command(*words, "--log-level", "warning", "--ready-json", *options))

    @classmethod
    def _ready(cls, process: subprocess.Popen[str]) -> Serving:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, err = process.communicate(timeout=_STOP_TIMEOUT_S)
            raise AssertionError(f"exit code {process.returncode} before it was ready: {err}")
        return cls(process, json.loads(line))

    @property
    def namesrv(self) -> str:
        """The name server's `host:port`."""
        return str(self.ready["namesrv"])

    @property
    def controller(self) -> str:
        """The `host:port` of a controller."""
        return str(self.ready["controller"])

    @property
    def grpc(self) -> str:
        """The `host:port` for gRPC clients."""
        return str(self.ready["grpc"])

    @property
    def remoting(self) -> str:
        """The `host:port` for remoting clients of a proxy."""
        return str(self.ready["remoting"])

    @property
    def broker(self) -> str:
        """The broker's `host:port`."""
        return str(self.ready["broker"])

    def stop(self, number: signal.Signals = signal.SIGINT) -> Outcome:
        """Send a signal and return the result of the process; stdout lacks the ready line.

        Raises:
            subprocess.TimeoutExpired: the process did not end within 60 s.
        """
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=_STOP_TIMEOUT_S)
        return Outcome(self.process.returncode, out, err)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self.process.stdout or not self.process.stdout.closed:
                self.stop()
        finally:
            self.process.kill()


def start_command(
    *args: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start `kourou` with `args`, an empty stdin, and no settings except those in `environ`."""
    return subprocess.Popen(  # noqa: S603  # our own command line
        [*_KOUROU, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**_clean_environment(), **(environ or {})},
        cwd=cwd,
    )


def run_command(*args: str, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run `kourou` with `args` to its end, 120 s at most."""
    process = start_command(*args, environ=environ)
    try:
        out, err = process.communicate(timeout=_COMMAND_TIMEOUT_S)
    finally:
        process.kill()
    return Outcome(process.returncode, out, err)


def _clean_environment() -> dict[str, str]:
    """Return this process's environment without Kourou's settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KOUROU_") and name != "NAMESRV_ADDR"
    }
