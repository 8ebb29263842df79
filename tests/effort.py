"""Choice of the cases that a test tries: fewer in `make test` than in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

PROFILE: Final = os.environ.get("KOUROU_TEST_PROFILE", "kourou")
"""`thorough` in `make soak`."""


def some(cases: Sequence[T], usual: int) -> Sequence[T]:
    """Return the first `usual` cases, or all of them in `make soak`."""
    return cases if PROFILE == "thorough" else cases[:usual]
