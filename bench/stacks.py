"""Analysis of folded stacks: time by function and by layer of Kourou.

A folded stack is one line: frames from the outermost to the innermost, separated by semicolons, and
the number of samples. A frame is `function (file:line)`, or `symbol (library)` for native code.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

KERNEL: Final = "kernel"
LOOP: Final = "loop"
_FRAME: Final = re.compile(r"^(?P<name>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
_OURS: Final = re.compile(r"(?:^|/)kourou/(?P<path>(?P<package>\w+)[\w/]*\.py)$")
_CALL_NAMES: Final = (
    "accept accept4 close epoll_ctl epoll_pwait epoll_wait fallocate fallocate64 fdatasync fstat "
    "fstat64 fsync ftruncate ftruncate64 futex madvise mmap mmap64 munmap open open64 poll pread "
    "pread64 preadv preadv2 preadv64v2 pwrite pwrite64 pwritev pwritev2 pwritev64 pwritev64v2 read "
    "readv recv recvfrom recvmsg send sendfile sendmsg sendto shutdown unlink write writev"
)
_CALLS: Final = frozenset(_CALL_NAMES.split())
"""Functions of libc that are plain system calls."""
_WAIT_NAMES: Final = (
    "poll epoll_pwait epoll_wait select futex pthread_cond_timedwait pthread_cond_wait sem_wait "
    "sem_clockwait PyThread_acquire_lock_timed os_read fdatasync fsync"
)
_WAITS: Final = frozenset(_WAIT_NAMES.split())
"""Functions in which a thread sleeps, waiting for events, a lock, a thread or the disk. In Python's
`os.read`, a thread waits to be woken up; sockets are read by other functions."""


@dataclass
class Costs:
    """Times by function and layer, in the unit of the given totals.

    Attributes:
        samples: number of samples of threads that were not waiting.
        waits: number of samples of waiting threads, by the function in which they waited.
        layers: time by layer.
        own: time by Python function, without the Python functions that it called; system calls are
            separate entries.
        below: time by Python function, including all that it called.
    """

    samples: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    layers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    own: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    below: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def costs(lines: Iterable[str], user: float, kernel: float) -> Costs:
    """Distribute the times spent in user code and in the kernel over folded stacks.

    Each kind of time is distributed over the samples of its kind only. A sample does not show
    whether its thread had a core, and on a busy machine threads that wake others often have none.
    If no sample shows the kernel, because native frames are missing, kernel time is included in the
    callers. Lines that are not stacks are ignored.
    """
    found = Costs()
    awake: list[tuple[list[tuple[str, str]], int]] = []
    for frames, count in _stacks(lines):
        wait = _wait(frames)
        if wait is None:
            awake.append((frames, count))
        else:
            found.waits[wait] += count
    found.samples = sum(count for _, count in awake)
    in_kernel = sum(count for frames, count in awake if _kernel_call(frames))
    if not in_kernel:
        user, kernel = user + kernel, 0.0
    user_weight = user / max(1, found.samples - in_kernel)
    kernel_weight = kernel / max(1, in_kernel)
    for frames, count in awake:
        _add(found, frames, count * (kernel_weight if _kernel_call(frames) else user_weight))
    return found


def _stacks(lines: Iterable[str]) -> Iterator[tuple[list[tuple[str, str]], int]]:
    for line in lines:
        stack, _, count_text = line.rstrip().rpartition(" ")
        if stack and count_text.isdigit():
            frames = [frame for frame in map(_parse, stack.split(";")) if frame is not None]
            yield frames, int(count_text)


def _add(found: Costs, frames: list[tuple[str, str]], cost: float) -> None:
    python = [name for name, file in frames if file.endswith(".py")]
    for name in set(python):
        found.below[name] += cost
    call = _kernel_call(frames)
    innermost = python[-1] if python else "no Python"
    found.own[f"{call}, by {innermost}" if call else innermost] += cost
    found.layers[KERNEL if call else _layer(frames)] += cost


def _parse(frame: str) -> tuple[str, str] | None:
    """Return a frame's name (for Python, with its file), and its file or library."""
    match = _FRAME.match(frame)
    if match is None:
        return None
    file = match["file"]
    ours = _OURS.search(file)
    where = ours["path"] if ours else "/".join(file.rsplit("/", 2)[-2:])
    name = f"{match['name']} ({where})" if file.endswith(".py") else match["name"]
    return name, file


def _wait(frames: list[tuple[str, str]]) -> str | None:
    """Return the native function in which the stack waits; None if it does not wait."""
    for name, file in reversed(frames):
        if file.endswith(".py"):
            return None
        if _plain(name) in _WAITS:
            return _plain(name)
    return None


def _plain(name: str) -> str:
    """Return the public name of a libc symbol."""
    return name.removeprefix("__libc_").removeprefix("__").removesuffix("_nocancel")


def _kernel_call(frames: list[tuple[str, str]]) -> str | None:
    """Return the system call of the innermost frame; None if it is not one."""
    if not frames or frames[-1][1].endswith(".py"):
        return None
    name = _plain(frames[-1][0])
    return name if name in _CALLS else None


def _layer(frames: list[tuple[str, str]]) -> str:
    """Return the innermost package of Kourou on the stack, except `cli`; else `LOOP`."""
    for _, file in reversed(frames):
        ours = _OURS.search(file)
        if ours and ours["package"] != "cli":
            return ours["package"]
    return LOOP
