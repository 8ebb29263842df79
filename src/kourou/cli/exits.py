"""How a command ends: exit codes, and an error's text with its remedy on stderr."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Final

from kourou.errors import (
    AddressInUseError,
    AuthenticationError,
    ConnectFailedError,
    ConnectionLostError,
    ConsumerNotOnlineError,
    CorruptRecordError,
    GroupNotFoundError,
    InternalError,
    KourouError,
    ListenFailedError,
    NoRouteError,
    RemoteError,
    RequestTimeoutError,
    StoreError,
    StoreUnusableError,
    UsageError,
)

OK: Final = 0
FAILED: Final = 1
"""The peer refused, or a check found something wrong."""
USAGE: Final = 2
"""What was asked for can never work: an option, a name, a config key."""
UNREACHABLE: Final = 3
"""No server answered, or this one could not start."""
INTERRUPTED: Final = 130
"""Ctrl-C, as the shell counts it: 128 + SIGINT."""

TRACEBACK_VARIABLE: Final = "KOUROU_TRACEBACK"
"""Set to anything, it makes an error print its traceback too."""

_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (KeyboardInterrupt, INTERRUPTED),
    (ListenFailedError, UNREACHABLE),
    (UsageError, USAGE),
    (NoRouteError, FAILED),
    (ConnectFailedError, UNREACHABLE),
    (ConnectionLostError, UNREACHABLE),
    (RequestTimeoutError, UNREACHABLE),
    (StoreError, UNREACHABLE),
    (KourouError, FAILED),
)
"""The first class that fits decides."""

_REMEDIES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (
        AuthenticationError,
        "commands sign by KOUROU_ACCESS_KEY and KOUROU_SECRET_KEY, or KOUROU_CREDENTIALS_FILE",
    ),
    (GroupNotFoundError, "`kourou group list` shows the groups"),
    (
        ConsumerNotOnlineError,
        "`kourou group list` shows the groups, and how many members are there",
    ),
    (ConnectFailedError, "--namesrv or KOUROU_NAMESRV name another server"),
    (
        AddressInUseError,
        "--port, --namesrv-port and --console-port choose other ports; 0 takes any free one",
    ),
    (ListenFailedError, "--listen, --port and --namesrv-port choose where to listen"),
    (
        CorruptRecordError,
        "copy the store before you repair it; `kourou store check` shows all that is wrong",
    ),
    (StoreUnusableError, "free some space, change its owner or mode, or choose another directory"),
    (RequestTimeoutError, "the server may be busy or gone; --timeout waits longer"),
    (InternalError, f"set {TRACEBACK_VARIABLE}=1, run it again, and report what it prints"),
)
"""For errors whose text cannot name a remedy, because it depends on the command line."""


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code that `error` ends the program with; None for one that is not ours.

    A deadline that cut off a try tells less than how the one before ended.
    """
    if isinstance(error, RequestTimeoutError) and isinstance(error.__cause__, KourouError):
        return exit_code_of(error.__cause__)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return None


def report(error: BaseException, *, as_json: bool = False) -> None:
    """Print `error` on stderr: one line, and one more where there is a remedy.

    As JSON it is one object: error, kind (the class), exit_code, remedy or null, and the code of a
    server that refused or null.
    """
    if isinstance(error, KeyboardInterrupt):
        return
    text = str(error)
    if isinstance(error, RemoteError) and error.remark:
        text = f"{error.remark.strip()} (code {error.code})"
    text = one_line(text) or type(error).__name__
    remedy = _remedy(error)
    if isinstance(error, RequestTimeoutError):  # what failed before the time was up heals first
        remedy = _remedy(error.__cause__) or remedy
    if as_json:
        code = error.code if isinstance(error, RemoteError) else None
        exit_code = FAILED if (known := exit_code_of(error)) is None else known
        say_json(text, type(error).__name__, exit_code, remedy=remedy, code=code)
    else:
        say(f"Error: {text}")
        if remedy is not None:
            say(f"  {remedy}")
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)


def _remedy(error: BaseException | None) -> str | None:
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return remedy
    return None


def say_json(
    text: str, kind: str, exit_code: int, *, remedy: str | None = None, code: int | None = None
) -> None:
    """Print an error for programs, on stderr."""
    error = {"error": text, "kind": kind, "exit_code": exit_code, "remedy": remedy, "code": code}
    say(json.dumps(error, ensure_ascii=False))


def say(text: str) -> None:
    """Print a line for people, on stderr, so that stdout holds only what was asked for."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # this is where the command line prints


def one_line(text: str) -> str:
    """Return `text` with what would break the line or drive the terminal as escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
