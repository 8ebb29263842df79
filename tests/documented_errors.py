"""Assertion that a function raises only its documented errors, for any argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_raises(*documented: type[Exception], case: str = "") -> Iterator[None]:
    """Accept that the block succeeds or raises a documented error; any other error passes through.

    Args:
        documented: the accepted classes, with their subclasses; none if the block must succeed.
        case: the tested arguments, added to the report of another error.
    """
    try:
        yield
    except documented:
        pass
    except Exception as error:
        if case:
            error.add_note(case)
        raise
