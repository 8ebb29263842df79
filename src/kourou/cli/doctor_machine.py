"""What `kourou doctor` looks at on this machine: versions, limits, ports, disk and store.

Nothing is left behind: the file by which syncs are timed is removed, and ports are let go at once.
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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kourou import __version__
from kourou.cli.finding import Finding, State
from kourou.cli.port_owner import PortOwner, port_owners
from kourou.disk import OsDisk
from kourou.errors import StoreLockedError, UsageError
from kourou.store.paths import ABORT, COMMITLOG, LOCK

EXTRAS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "fast": (("uvloop", "isal", "lz4", "zstandard"), "slower, and no LZ4 and Zstandard bodies"),
    "server": (
        ("prometheus-client", "cryptography"),
        "no /metrics, and TLS without a given certificate only by the program openssl",
    ),
}
"""Extras that servers and clients want: their packages, and what is missing without them."""

FILES_WRONG: Final = 1_024
"""Open files below which a broker with some hundred clients fails: it keeps 512 store files."""
FILES_NOTE: Final = 8_192
FREE_BYTES_MIN: Final = 512 * 1024 * 1024
"""Free space below which a broker refuses messages."""
DISK_FULL_RATIO: Final = 0.9
SYNCS: Final = 16
SYNC_NOTE_MS: Final = 20.0
SYNC_WRONG_MS: Final = 200.0
SYNC_TOO_FAST_MS: Final = 0.02
"""No device is that fast: it is memory, or nothing was written."""
_BLOCK: Final = b"\0" * 4096

FindOwners = Callable[[Collection[int]], Mapping[int, PortOwner]]
ReadTimeS = Callable[[], float]


def check_versions() -> list[Finding]:
    """Tell which versions are installed, and which extras are not."""
    findings = [
        Finding(
            State.OK,
            "versions",
            f"kourou {__version__}, Python {platform.python_version()}, {platform.platform()}",
        )
    ]
    for extra, (packages, without) in EXTRAS.items():
        missing = [name for name in packages if not _is_installed(name)]
        if missing:
            detail = f"{', '.join(missing)} missing: {without}"
            remedy = f"pip install 'kourou[{extra}]'"
            findings.append(Finding(State.NOTE, f"extra {extra}", detail, remedy))
        else:
            findings.append(Finding(State.OK, f"extra {extra}", "installed"))
    return findings


def check_open_files() -> list[Finding]:
    """Tell how many files and connections a process may have open; nothing where there is no limit.

    The limit of this shell is that of a broker started in it.
    """
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [judge_open_files(soft, hard, unlimited=resource.RLIM_INFINITY)]


def judge_open_files(soft: int, hard: int, *, unlimited: int) -> Finding:
    """Return the finding of a limit on open files."""
    if soft == unlimited or soft >= FILES_NOTE:
        text = "no limit" if soft == unlimited else f"{soft:,}"
        return Finding(State.OK, "open files", text)
    wanted = 65_536 if hard == unlimited else min(65_536, hard)
    remedy = f"ulimit -n {wanted}, in the shell that starts `kourou serve`"
    state = State.WRONG if soft < FILES_WRONG else State.NOTE
    return Finding(state, "open files", f"{soft:,}: each client takes one", remedy)


@dataclass(frozen=True, slots=True)
class Port:
    """A port that `kourou serve` listens on.

    Attributes:
        number: the port.
        purpose: what listens there.
        option: takes another one.
        is_needed: without it nothing starts.
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
    """Tell whether ports of the local address can be listened on, or by whom they are taken.

    Args:
        host: the local address.
        ports: which.
        answered: ports of servers that were asked and answered, which are in order.
        find_owners: who listens on ports.
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
    text = f"taken by {owner or 'another process'}, wanted for {port.purpose}"
    if error.errno != errno.EADDRINUSE:
        reason = error.strerror or str(error)
        text = f"{host}:{port.number} cannot be listened on, for {port.purpose}: {reason}"
    state = State.WRONG if port.is_needed else State.NOTE
    return Finding(
        state, check, text, f"`kourou serve {port.option}` takes another; 0 is any free one"
    )


def check_store(store: Path, read_time_s: ReadTimeS = time.perf_counter) -> list[Finding]:
    """Tell how the store's directory is, the space on its disk, and how long a sync takes."""
    place = store
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        what = "no directory" if not place.is_dir() else "not to be read and written"
        remedy = "choose another one with --store, or change its owner or mode"
        return [Finding(State.WRONG, "store", f"{place} is {what}", remedy)]
    try:
        disk = OsDisk(place)
    except UsageError as error:
        return [Finding(State.NOTE, "store", str(error))]
    try:
        state = _store_state(disk, store)
        try:
            return [state, judge_space(place, *disk.space()), _check_sync(disk, read_time_s)]
        except OSError as error:
            text = f"{place} cannot be written: {error.strerror or error}"
            remedy = "choose another directory with --store, or free some space"
            return [state, Finding(State.WRONG, "disk", text, remedy)]
    finally:
        disk.close()


def judge_space(place: Path, total: int, free: int, available: int) -> Finding:
    """Return the finding of the space on the file system of `place`, in bytes."""
    taken = total - free
    used = taken / (taken + available) if taken + available else 1.0  # as df, and brokers, count
    text = f"{available / 1024**3:,.1f} GiB free, {used:.0%} used, at {place}"
    remedy = "free some space, or choose another disk with --store"
    if available < FREE_BYTES_MIN:
        text = f"{text}; below 512 MiB messages are refused"
        return Finding(State.WRONG, "disk space", text, remedy)
    if used >= DISK_FULL_RATIO:
        return Finding(State.NOTE, "disk space", text, remedy)
    return Finding(State.OK, "disk space", text)


def judge_sync(typical_ms: float, longest_ms: float) -> Finding:
    """Return the finding of how long a sync to the disk takes."""
    text = f"{typical_ms:.2f} ms for a sync, {longest_ms:.2f} ms for the longest of {SYNCS}"
    remedy = "a faster disk, or `kourou serve --flush async` if a power cut may lose the last 0.5 s"
    if typical_ms >= SYNC_WRONG_MS:
        return Finding(State.WRONG, "disk sync", f"{text}: so long does each send wait", remedy)
    if typical_ms >= SYNC_NOTE_MS:
        return Finding(State.NOTE, "disk sync", f"{text}: so long does each send wait", remedy)
    if typical_ms < SYNC_TOO_FAST_MS:
        text = f"{text}: no disk is that fast, so a power cut may lose what is acknowledged"
        return Finding(State.NOTE, "disk sync", text, "a store on a local disk, not in memory")
    return Finding(State.OK, "disk sync", text)


def _store_state(disk: OsDisk, store: Path) -> Finding:
    """Tell whether a store is there, in use, and closed cleanly."""
    if str(store) != disk.root or not disk.exists(COMMITLOG):
        return Finding(State.OK, "store", f"none yet in {store}; `kourou serve` makes it")
    if disk.exists(LOCK):
        try:
            disk.lock(LOCK)()
        except StoreLockedError:
            return Finding(State.OK, "store", f"{store} is in use by a broker that runs")
        except OSError as error:
            text = f"{store} cannot be locked: {error.strerror or error}"
            remedy = "change the owner or mode of the file lock in it"
            return Finding(State.WRONG, "store", text, remedy)
    if disk.exists(ABORT):
        text = f"{store} was not closed cleanly; the next start recovers it"
        remedy = f"start it once, stop it, then `kourou store check {store}`"
        return Finding(State.NOTE, "store", text, remedy)
    return Finding(State.OK, "store", f"{store} was closed cleanly when last used")


def _check_sync(disk: OsDisk, read_time_s: ReadTimeS) -> Finding:
    """Time syncs of a page, as a broker makes them.

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
    """Listen on the port for a moment; return why that cannot be done."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            if os.name == "posix":  # there it lets a port be taken that has only just been let go
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
