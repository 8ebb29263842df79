"""Errors of the data source as Spark's users see them: one line first, then the traceback.

Spark shows the traceback of its Python worker in front of an error's text. Here the text comes
first, so that it is the line that consoles and logs show. The traceback follows as a note, except
for mistakes in the use (`UsageError`), where the text says all.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from kourou.errors import KourouError, UsageError

_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Environment variable by which a worker of PySpark leaves out the traceback of an error."""

_F = TypeVar("_F", bound=Callable[..., Any])


def text_first(method: _F) -> _F:
    """Decorate a method that Spark calls in a worker: its errors begin with their text."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def iterate(*args: object, **kwargs: object) -> Iterator[Any]:
            with _reported():
                yield from method(*args, **kwargs)

        return cast("_F", iterate)

    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        with _reported():
            return method(*args, **kwargs)

    return cast("_F", call)


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except KourouError as error:
        if _is_worker():
            # The worker exits after it has sent the error, so no other error is concerned.
            os.environ[_HIDE_TRACEBACK] = "1"
            if not isinstance(error, UsageError):
                error.add_note("".join(traceback.format_exception(error, chain=True)))
        raise


def _is_worker() -> bool:
    """Whether this process is a worker of PySpark, not a program that calls the data source."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
