"""What holds for all tests: no deadline for properties, and logging left as it was found."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("kourou", deadline=None)
settings.load_profile("kourou")


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Undo what a command run in this process does to the handlers and levels."""
    root, ours = logging.getLogger(), logging.getLogger("kourou")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
