"""Fixtures: a real `kourou serve` on free ports, and the command line run against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from typer.testing import CliRunner

from kourou.cli.main import app
from kourou.testing.process import Outcome, Serving


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Run one server process for all tests that do not restart it."""
    with Serving.start(tmp_path_factory.mktemp("serve") / "store") as running:
        yield running
        assert running.stop().code == 0


@pytest.fixture
def command() -> Callable[..., Outcome]:
    """Return a function that runs a command in this process, quickly and without a terminal."""

    def run(*args: str, stdin: str = "", environ: Mapping[str, str] | None = None) -> Outcome:
        clean = {"KOUROU_NAMESRV": None, "NAMESRV_ADDR": None, **(environ or {})}
        result = CliRunner().invoke(app, list(args), input=stdin, env=clean)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def kourou(command: Callable[..., Outcome], serving: Serving) -> Callable[..., Outcome]:
    """Return a function that runs a command against the server process."""

    def run(*args: str, stdin: str = "") -> Outcome:
        return command(*args, stdin=stdin, environ={"KOUROU_NAMESRV": serving.namesrv})

    return run
