"""Checks of `kourou doctor` on this machine: versions, limits, ports, disk and store.

The checks leave nothing behind: the file for the time of syncs is removed, and ports are closed at
once.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kourou import __version__
from kourou.cli.health import DISK_FULL_RATIO
from kourou.cli.machine import PortOwner, port_owners
from kourou.disk import OsDisk
from kourou.errors import StoreLockedError, UsageError
from kourou.store.paths import ABORT, COMMITLOG, LOCK


class State(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Works, with a restriction."""
    WRONG = "wrong"
    """Does not work, or not as documented."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        state: the severity.
        check: the checked object, in a word or two.
        detail: the observation.
        remedy: the action to take; empty if there is no problem.
    """

    state: State
    check: str
    detail: str
    remedy: str = ""


EXTRAS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "fast": (("uvloop", "isal", "lz4", "zstandard"), "slower, and no LZ4 and Zstandard bodies"),
    "server": (
        ("prometheus-client", "cryptography"),
        "no /metrics, and the self-signed TLS certificate needs the program openssl",
    ),
    "proxy": (("protobuf", "hpack"), "gRPC clients (RocketMQ's 5.x SDKs) are not served"),
}
"""Extras for servers and clients: their packages, and the effect if one of them is missing."""

FILES_WRONG: Final = 1_024
"""A lower limit of open files makes a broker with a few hundred clients fail, because the broker
keeps 512 store files open."""
FILES_NOTE: Final = 8_192
FREE_BYTES_MIN: Final = 512 * 1024 * 1024
"""Free space below which a broker refuses sends."""
SYNCS: Final = 16
SYNC_NOTE_MS: Final = 20.0
SYNC_WRONG_MS: Final = 200.0
SYNC_TOO_FAST_MS: Final = 0.02
"""No disk is faster: the file system is in memory, or the sync wrote nothing."""
_BLOCK: Final = b"\0" * 4096

FindOwners = Callable[[Collection[int]], Mapping[int, PortOwner]]
ReadTimeS = Callable[[], float]


def check_versions() -> list[Finding]:
    """Return the installed versions, and the state of each extra."""
    findings = [
        Finding(
            State.OK,
            "versions",
            f"kourou {__version__}, Python {platform.python_version()}, {platform.platform()}",
        )
    ]
    for extra, (packages, effect) in EXTRAS.items():
        missing = [name for name in packages if not _is_installed(name)]
        if missing:
            detail = f"{', '.join(missing)} missing: {effect}"
            remedy = f"pip install 'kourou[{extra}]'"
            findings.append(Finding(State.NOTE, f"extra {extra}", detail, remedy))
        else:
            findings.append(Finding(State.OK, f"extra {extra}", "installed"))
    return findings


def check_open_files() -> list[Finding]:
    """Return the finding for the limit of open files and connections; empty on Windows.

    The limit of this process equals that of a broker that is started in the same shell.
    """
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [judge_open_files(soft, hard, unlimited=resource.RLIM_INFINITY)]


def judge_open_files(soft: int, hard: int, *, unlimited: int) -> Finding:
    """Return the finding for a limit of open files."""
    if soft == unlimited or soft >= FILES_NOTE:
        text = "no limit" if soft == unlimited else f"{soft:,}"
        return Finding(State.OK, "open files", text)
    suggested = 65_536 if hard == unlimited else min(65_536, hard)
    remedy = f"ulimit -n {suggested}, in the shell that starts `kourou serve`"
    state = State.WRONG if soft < FILES_WRONG else State.NOTE
    return Finding(state, "open files", f"at most {soft:,}: each client takes one", remedy)


@dataclass(frozen=True, slots=True)
class Port:
    """A port that `kourou serve` listens on.

    Attributes:
        number: the port.
        purpose: the server that listens on it.
        option: the option that changes it.
        is_needed: whether the start fails without it.
    """

    number: int
    purpose: str
    option: str
    is_needed: bool = True


def check_ports(
    host: str,
    ports: Sequence[Port],
    *,
    answered: Collection[int] = (),
    find_owners: FindOwners = port_owners,
) -> list[Finding]:
    """Return whether each port of the local address is free, and the process that uses it if not.

    Args:
        host: the local address.
        ports: the ports to check.
        answered: ports of servers that answered a request; these are fine.
        find_owners: returns the processes that listen on ports.
    """
    failures = {port: _failure_to_listen(host, port.number) for port in ports}
    taken = [
        port.number
        for port, error in failures.items()
        if error is not None and error.errno == errno.EADDRINUSE
    ]
    owners = find_owners(taken) if taken else {}
    return [
        _judge_port(host, port, error, owners.get(port.number), is_answered=port.number in answered)
        for port, error in failures.items()
    ]


def _judge_port(
    host: str, port: Port, error: OSError | None, owner: PortOwner | None, *, is_answered: bool
) -> Finding:
    check = f"port {port.number}"
    if error is None:
        return Finding(State.OK, check, f"free, for {port.purpose}")
    if owner is not None and owner.is_broker:
        return Finding(State.OK, check, f"{port.purpose}, by {owner}")
    if owner is None and is_answered:
        return Finding(State.OK, check, f"{port.purpose} answers")
    text = f"in use by {owner or 'another process'}, needed for {port.purpose}"
    if error.errno != errno.EADDRINUSE:
        reason = error.strerror or str(error)
        text = f"cannot listen on {host}:{port.number} for {port.purpose}: {reason}"
    state = State.WRONG if port.is_needed else State.NOTE
    return Finding(
        state, check, text, f"choose another with `kourou serve {port.option}`; 0 means any free"
    )


def check_store(store: Path, read_time_s: ReadTimeS = time.perf_counter) -> list[Finding]:
    """Return findings for the store directory, the space on its disk, and the time of a sync."""
    directory = store
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir() or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        problem = "not a directory" if not directory.is_dir() else "not readable and writable"
        remedy = "choose another with --store, or change its owner or mode"
        return [Finding(State.WRONG, "store", f"{directory} is {problem}", remedy)]
    try:
        disk = OsDisk(directory)
    except UsageError as error:
        return [Finding(State.NOTE, "store", str(error))]
    try:
        state = _store_state(disk, store)
        try:
            return [state, judge_space(directory, *disk.space()), _check_sync(disk, read_time_s)]
        except OSError as error:
            text = f"cannot write to {directory}: {error.strerror or error}"
            remedy = "choose another directory with --store, or free some space"
            return [state, Finding(State.WRONG, "disk", text, remedy)]
    finally:
        disk.close()


def judge_space(directory: Path, total: int, free: int, available: int) -> Finding:
    """Return the finding for the space on the file system of `directory`; sizes in bytes."""
    taken = total - free
    used = taken / (taken + available) if taken + available else 1.0  # as df and brokers compute it
    text = f"{available / 1024**3:,.1f} GiB free, {used:.0%} used, at {directory}"
    remedy = "free some space, or choose another disk with --store"
    if available < FREE_BYTES_MIN:
        text = f"{text}; below 512 MiB brokers refuse sends"
        return Finding(State.WRONG, "disk space", text, remedy)
    if used >= DISK_FULL_RATIO:
        return Finding(State.NOTE, "disk space", text, remedy)
    return Finding(State.OK, "disk space", text)


def judge_sync(typical_ms: float, longest_ms: float) -> Finding:
    """Return the finding for the time of a sync."""
    text = f"{typical_ms:.2f} ms for a sync, {longest_ms:.2f} ms for the longest of {SYNCS}"
    remedy = "use a faster disk, or `kourou serve --flush async`, with which a power failure may "
    remedy += "lose the last 0.5 s"
    if typical_ms >= SYNC_WRONG_MS:
        return Finding(State.WRONG, "disk sync", f"{text}: each send waits this long", remedy)
    if typical_ms >= SYNC_NOTE_MS:
        return Finding(State.NOTE, "disk sync", f"{text}: each send waits this long", remedy)
    if typical_ms < SYNC_TOO_FAST_MS:
        text = f"{text}: no disk is that fast, so a power failure may lose acknowledged messages"
        return Finding(State.NOTE, "disk sync", text, "keep the store on a local disk")
    return Finding(State.OK, "disk sync", text)


def _store_state(disk: OsDisk, store: Path) -> Finding:
    """Return whether a store exists, is in use, and was closed cleanly."""
    if str(store) != disk.root or not disk.exists(COMMITLOG):
        return Finding(State.OK, "store", f"none yet in {store}; `kourou serve` creates it")
    if disk.exists(LOCK):
        try:
            disk.lock(LOCK)()
        except StoreLockedError:
            return Finding(State.OK, "store", f"{store} is in use by a running broker")
        except OSError as error:
            text = f"{store} cannot be locked: {error.strerror or error}"
            remedy = "change the owner or mode of its file `lock`"
            return Finding(State.WRONG, "store", text, remedy)
    if disk.exists(ABORT):
        text = f"{store} was not closed cleanly; the next start recovers it"
        remedy = f"start and stop the broker once, then run `kourou store check {store}`"
        return Finding(State.NOTE, "store", text, remedy)
    return Finding(State.OK, "store", f"{store} was closed cleanly when last used")


def _check_sync(disk: OsDisk, read_time_s: ReadTimeS) -> Finding:
    """Measure the time of syncs of one page each, as a broker makes them.

    Raises:
        OSError: the file cannot be written.
    """
    name = f"kourou-doctor-{os.getpid()}.tmp"
    took_ms = []
    try:
        for number in range(SYNCS):
            disk.write(name, number * len(_BLOCK), [_BLOCK])
            began_s = read_time_s()
            disk.sync(name)
            took_ms.append((read_time_s() - began_s) * 1000)
    finally:
        if disk.exists(name):
            disk.unlink(name)
    return judge_sync(statistics.median(took_ms), max(took_ms))


def _failure_to_listen(host: str, port: int) -> OSError | None:
    """Listen on the port for a moment; return the error if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            if os.name == "posix":  # there the option allows a port that was closed just before
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return error
    return None


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
