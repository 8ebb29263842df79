"""A real `kourou serve` on free ports, and the command line run against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kourou.cli.main import app

KOUROU = (sys.executable, "-m", "kourou.cli.main")
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("KOUROU_") and name != "NAMESRV_ADDR"
}
"""This machine's, without what would change the commands under test."""


@dataclass(frozen=True)
class Serving:
    """A `kourou serve` that is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, object]

    @property
    def namesrv(self) -> str:
        return str(self.ready["namesrv"])

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal; return exit code, stdout after the ready line, and stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=10)
        return self.process.returncode, out, err


def serve(store: Path, *options: str, environ: Mapping[str, str] | None = None) -> Serving:
    """Start `kourou serve` on free ports, and return when it is ready."""
    process = subprocess.Popen(
        [
            *KOUROU,
            "serve",
            "--store",
            str(store),
            "--port",
            "0",
            "--namesrv-port",
            "0",
            "--ready-json",
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **(environ or {})},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, err = process.communicate(timeout=10)
        raise AssertionError(f"exit code {process.returncode} before it was ready: {err}")
    return Serving(process, json.loads(line))


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One process that serves all tests which do no more than use it."""
    running = serve(tmp_path_factory.mktemp("serve") / "store")
    yield running
    code, _, err = running.stop()
    assert code == 0, err


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


def run_here(*args: str, stdin: str = "", environ: Mapping[str, str] | None = None) -> Outcome:
    """Run a command in this process; stdout is a pipe, as far as it can tell."""
    result = CliRunner().invoke(app, list(args), input=stdin, env=dict(environ or {}))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def start(*args: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [*KOUROU, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def run_apart(*args: str, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run a command in a process of its own, to its end."""
    done = subprocess.run(
        [*KOUROU, *args],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**ENVIRONMENT, **(environ or {})},
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def kourou(serving: Serving) -> Run:
    """Run a command in this process, against the serving one."""

    def run(*args: str, stdin: str = "") -> Outcome:
        return run_here(*args, stdin=stdin, environ={"KOUROU_NAMESRV": serving.namesrv})

    return run


__all__: Sequence[str] = ("Outcome", "Run", "Serving", "run_apart", "run_here", "serve", "start")
