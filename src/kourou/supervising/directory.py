"""The directory of a cluster on one machine.

    cluster.json         its processes and their ports, written once
    lock                 held by the supervisor while it runs
    state.json           pid, state and number of starts of each process, replaced at each change
    logs/NAME.log        log entries of a process; NAME.log.1 is the file before
    NAME/                the store of a broker, the data of etcd, the state of a controller, or the
                         configuration of a name server

`state.json` is not durable: it counts only while the lock is held.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from kourou.errors import StoreLockedError, StoreUnusableError, UsageError
from kourou.file_locks import FILE_LOCKS
from kourou.supervising.topology import Shape, Topology, decode_topology, encode_topology

_TOPOLOGY: Final = "cluster.json"
_STATE: Final = "state.json"
_LOCK: Final = "lock"
_LOGS: Final = "logs"
LOG_BYTES_MAX: Final = 32 * 1024 * 1024
"""Size from which a log file is set aside when its process starts."""
_BROKER_ID: Final = "brokerIdentity"
"""The file of the id in the store of a broker."""
_TAIL_BYTES: Final = 4096
_ERROR: Final = "Error: "
"""Begins the error text of a server that could not start."""


class ClusterDirectory:
    """The files of one cluster."""

    def __init__(self, path: Path) -> None:
        """Name the directory, which need not exist."""
        self.path = path.expanduser().absolute()
        self._log_starts: dict[str, int] = {}  # size of each log file when it was opened

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the supervisor; create the directory if it is missing.

        Raises:
            StoreLockedError: another supervisor runs.
            StoreUnusableError: the directory cannot be created or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            unlock = FILE_LOCKS.acquire(str(self.path / _LOCK))
        except StoreLockedError:
            pid = self.state().get("pid", "unknown")
            raise StoreLockedError(
                f"{self.path} is in use by another `kourou cluster` (pid {pid}): stop that one "
                "first, or choose another directory with --dir"
            ) from None
        except OSError as error:
            raise self._unusable(error) from error
        try:
            yield
        finally:
            unlock()

    @property
    def is_locked(self) -> bool:
        """Whether a supervisor runs."""
        return FILE_LOCKS.is_locked(str(self.path / _LOCK))

    def topology(self) -> Topology | None:
        """Return the processes of the cluster; None if none were chosen yet.

        Raises:
            UsageError: the file is damaged.
            StoreUnusableError: the file cannot be read.
        """
        file = self.path / _TOPOLOGY
        try:
            return decode_topology(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        except ValueError as error:
            raise UsageError(
                f"{file} is damaged ({error}): restore it, or move it away and start with the same "
                "numbers: messages remain, and ports are chosen again"
            ) from None

    def settle(self, wanted: Mapping[str, int], create: Callable[[Shape], Topology]) -> Topology:
        """Return the processes of the cluster; choose and store them at the first start.

        Args:
            wanted: the fields of `Shape` that the caller requests.
            create: chooses ports.

        Raises:
            UsageError: the directory has other numbers of processes, or a damaged file; or the
                numbers of a new one are missing or out of range.
            AddressInUseError: a port of a new cluster is in use.
            StoreUnusableError: the file cannot be read or written.
        """
        found = self.topology()
        if found is None:
            if "brokers" not in wanted:
                raise UsageError(f"{self.path} has no cluster yet: add --brokers, such as 2")
            found = create(Shape(**wanted))
            self._replace(_TOPOLOGY, encode_topology(found), is_durable=True)
            return found
        different = {k: n for k, n in wanted.items() if n != getattr(found.shape, k)}
        if different:
            options = " ".join(f"--{name} {number}" for name, number in different.items())
            raise UsageError(
                f"{self.path} has a cluster of {found.shape}, not {options}: leave the option "
                "out to start that one, or choose another directory with --dir"
            )
        return found

    def own(self, name: str) -> Path:
        """Return the directory of a process."""
        return self.path / name

    def has_broker_id(self, name: str) -> bool:
        """Return whether controllers have assigned a broker its id."""
        return (self.own(name) / _BROKER_ID).exists()

    def log_file(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.path / _LOGS / f"{name}.log"

    def open_log(self, name: str) -> BinaryIO:
        """Open the log file of a process to append; set a large one aside first.

        Raises:
            OSError: it cannot be written.
        """
        file = self.log_file(name)
        file.parent.mkdir(exist_ok=True)
        if file.exists() and file.stat().st_size > LOG_BYTES_MAX:
            file.replace(file.with_name(f"{file.name}.1"))
        log = file.open("ab")
        self._log_starts[name] = log.seek(0, os.SEEK_END)
        return log

    def last_error(self, name: str) -> str:
        """Return the last error text in a log file, or else its last line; empty without one.

        What was there before `open_log` is of an earlier process, and does not count.
        """
        first = self._log_starts.get(name, 0)
        try:
            with self.log_file(name).open("rb") as file:
                file.seek(max(first, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(_ERROR)]
        return next(iter([*errors[-1:], *lines[-1:]]), "")

    def write_state(self, state: Mapping[str, object]) -> None:
        """Replace the state of the processes.

        Raises:
            StoreUnusableError: it cannot be written.
        """
        self._replace(_STATE, json.dumps(state, indent=2) + "\n", is_durable=False)

    def state(self) -> dict[str, Any]:
        """Return the state of the processes; empty without one."""
        try:
            found = json.loads((self.path / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _replace(self, name: str, text: str, *, is_durable: bool) -> None:
        new = self.path / f"{name}.new"
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            new.replace(self.path / name)
            if is_durable:
                fd = os.open(self.path, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StoreUnusableError:
        at = f": {error.filename}" if error.filename else ""  # a full disk is found without a name
        return StoreUnusableError(str(self.path), f"{error.strerror or error}{at}")
