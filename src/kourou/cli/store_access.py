"""Access of `kourou store` commands to a store directory: checks, lock and errors."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from kourou.disk import OsDisk
from kourou.errors import StoreLockedError, StoreUnusableError, UsageError
from kourou.store.paths import COMMITLOG, LOCK


@contextmanager
def open_store_disk(
    path: Path, *, lock: bool, may_be_new: bool = False, may_be_live: bool = False
) -> Iterator[OsDisk]:
    """Yield the disk of the store in a directory; unlock and close it at the end.

    Args:
        path: the directory.
        lock: hold the store's lock, so that no broker can open it meanwhile.
        may_be_new: accept a directory without a store, and create a missing one.
        may_be_live: the command has `--live`, which the error of a store in use names.

    Raises:
        UsageError: there is no store.
        StoreLockedError: another process uses the store.
        StoreUnusableError: a file of the store cannot be read or written.
    """
    path = path.expanduser()
    if not may_be_new:
        check_store_directory(path)
    elif path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a directory: name one, which need not exist")
    try:
        if may_be_new:
            path.mkdir(parents=True, exist_ok=True)
        disk = OsDisk(path)
        # A store that was never opened has no lock file, and a read must not create it.
        unlock = _locked(disk) if lock and disk.exists(LOCK) else None
    except OSError as error:
        raise _unusable(path, error) from error
    except StoreLockedError as error:
        if may_be_live:
            raise StoreLockedError(f"{error}; or read the durable part with --live") from error
        raise
    try:
        yield disk
    except BrokenPipeError:
        raise  # the reader of stdout has closed the pipe
    except OSError as error:
        raise _unusable(path, error) from error
    finally:
        if unlock is not None:
            unlock()
        disk.close()


def _locked(disk: OsDisk) -> Callable[[], None] | None:
    """Lock the store and return the function that unlocks it; None on a read-only file system."""
    try:
        return disk.lock(LOCK)
    except OSError as error:
        if error.errno == errno.EROFS:  # no process can write to the store there
            return None
        raise


def check_store_directory(path: Path) -> None:
    """Raise an error if there is no store in the directory.

    Raises:
        UsageError: the directory or its commit log does not exist.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory: name the store of `kourou serve`")
    if not (path / COMMITLOG).is_dir():
        raise UsageError(f"{path} contains no store: it has no directory {COMMITLOG}")


def _unusable(path: Path, error: OSError) -> StoreUnusableError:
    name = f"{error.filename}: " if error.filename and error.filename != str(path) else ""
    return StoreUnusableError(str(path), f"{name}{error.strerror or error}")


def instant(at_ms: int | None) -> str | None:
    """Return an instant in epoch ms as local time, or as a number if it is out of range."""
    if at_ms is None or at_ms == 0:
        return None
    try:
        at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"
