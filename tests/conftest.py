"""Settings of all tests: long files first, no deadline for properties, logging restored."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import effort

# A slow example on a busy machine is not a failure. `make soak` tests with more examples.
settings.register_profile("kourou", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1_000)
settings.load_profile(effort.PROFILE)

# A shell starts background jobs with SIGINT ignored, and the tested commands would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = ("tests/torture/", "tests/crash/", "tests/spark/", "tests/pipelines/", "tests/test_words.py")
"""Files that begin first: one that begins last would run alone. `make test` keeps this order."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Give pytest's handlers back their format.

    pytest adds them to each logger that does not propagate, at the beginning of each phase of a
    test. PySpark's loggers are such after the first failed query, and set a format of their own at
    each handler that is added, for good. Records lack `message` then.
    """
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    assert plugin is not None, "a part of pytest"
    plugin.caplog_handler.setFormatter(plugin.formatter)
    plugin.report_handler.setFormatter(plugin.formatter)


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Restore the log handlers and levels that a command in this process changes."""
    root, ours = logging.getLogger(), logging.getLogger("kourou")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
