"""What holds for all tests: no deadline for properties, Ctrl-C, logging left as it was found."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("kourou", deadline=None)
settings.load_profile("kourou")

# A shell starts what runs in its background deaf to Ctrl-C, and so would be the commands tried.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Undo what a command run in this process does to the handlers and levels."""
    root, ours = logging.getLogger(), logging.getLogger("kourou")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
