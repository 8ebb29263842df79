"""The store directory that `kourou store` commands are given: found, locked, its errors told."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self

import typer

from kourou.cli.progress import Progress
from kourou.disk import OsDisk
from kourou.errors import StoreLockedError, StoreUnusableError, UsageError
from kourou.store.paths import COMMITLOG, LOCK

StorePath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", show_default=False, help="The directory that `kourou serve` showed."
    ),
]
Live = Annotated[
    bool, typer.Option("--live", help="Read the part that is durable, of a store in use as well.")
]

_MIB: Final = 1024 * 1024


@contextmanager
def store_at(
    path: Path, *, lock: bool, may_be_new: bool = False, may_be_live: bool = False
) -> Iterator[OsDisk]:
    """Give the disk of the store in a directory, and let go of it at the end.

    Args:
        path: the directory.
        lock: nobody may have the store open meanwhile.
        may_be_new: there need be no store yet; the directory is made.
        may_be_live: the command has `--live`, which needs no lock.

    Raises:
        UsageError: there is no store.
        StoreLockedError: somebody has it open.
        StoreUnusableError: a file of it cannot be read or written.
    """
    path = path.expanduser()
    if not may_be_new:
        check_store_at(path)
    elif path.exists() and not path.is_dir():
        raise UsageError(f"{path} is no directory: name one, which may be new")
    try:
        if may_be_new:
            path.mkdir(parents=True, exist_ok=True)
        disk = OsDisk(path)
        # A store that was never opened has no lock file, and looking at one must not make it.
        unlock = _locked(disk) if lock and disk.exists(LOCK) else None
    except OSError as error:
        raise _unusable(path, error) from error
    except StoreLockedError as error:
        if may_be_live:
            raise StoreLockedError(
                f"{error}; or read what is durable by now, with --live"
            ) from error
        raise
    try:
        yield disk
    except BrokenPipeError:
        raise  # of stdout: its reader has gone
    except OSError as error:
        raise _unusable(path, error) from error
    finally:
        if unlock is not None:
            unlock()
        disk.close()


def _locked(disk: OsDisk) -> Callable[[], None] | None:
    """Lock the store; return what unlocks it, None where nobody can have it open to write."""
    try:
        return disk.lock(LOCK)
    except OSError as error:
        if error.errno == errno.EROFS:  # as a copy, mounted to be looked at
            return None
        raise


def check_store_at(path: Path) -> None:
    """Raise if there is no store in the directory.

    Raises:
        UsageError: there is none.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is no directory: give the one that `kourou serve` showed")
    if not (path / COMMITLOG).is_dir():
        raise UsageError(f"{path} holds no store: there is no {COMMITLOG} directory in it")


def _unusable(path: Path, error: OSError) -> StoreUnusableError:
    name = f"{error.filename}: " if error.filename and error.filename != str(path) else ""
    return StoreUnusableError(str(path), f"{name}{error.strerror or error}")


class LogProgress:
    """How much of the log is read, on the terminal of who waits. Call it with bytes: done, all.

    Args:
        verb: what is done with it, as "verified".
        is_shown: False where lines of the work go to the same terminal.
    """

    def __init__(self, verb: str, *, is_shown: bool = True) -> None:
        self._verb = verb
        # These commands print at their end only, so that a terminal may show both.
        self._is_shown = is_shown and sys.stderr.isatty()
        self._line: Progress | None = None
        self._shown = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Take how far it is."""
        if self._line is None:
            self._line = Progress(
                f"MiB of the log {self._verb}", total_bytes // _MIB, is_shown=self._is_shown
            )
        done = done_bytes // _MIB
        self._line.advance(max(0, done - self._shown))
        self._shown = done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.wipe()


def instant(at_ms: int | None) -> str | None:
    """Return an instant in epoch ms as local time; as it is where it can be none."""
    if at_ms is None or at_ms == 0:
        return None
    try:
        at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"
