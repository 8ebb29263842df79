"""Exit codes of commands, and the error report on stderr: text and remedy."""

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
    NoLeaderError,
    NoRouteError,
    RemoteError,
    RequestTimeoutError,
    StoreError,
    StoreUnusableError,
    UsageError,
    WaitEndedError,
)

OK: Final = 0
FAILED: Final = 1
"""The peer refused, or a check found a problem."""
USAGE: Final = 2
"""The command is wrong and can never succeed: an option, a name, a config key."""
UNREACHABLE: Final = 3
"""No server answered, or the server of this process could not start."""
INTERRUPTED: Final = 130
"""Ctrl-C, by the convention of shells: 128 + SIGINT."""

TRACEBACK_VARIABLE: Final = "KOUROU_TRACEBACK"
"""Environment variable: with any value, errors are printed with their traceback."""

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
"""The first class that matches determines the code."""

_REMEDIES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (
        AuthenticationError,
        "set KOUROU_ACCESS_KEY and KOUROU_SECRET_KEY, or KOUROU_CREDENTIALS_FILE, to sign requests",
    ),
    (GroupNotFoundError, "`kourou group list` shows the groups"),
    (ConsumerNotOnlineError, "`kourou group list` shows the groups and their numbers of members"),
    (
        NoLeaderError,
        "start them, or name others; they choose a leader within seconds while they reach etcd",
    ),
    (ConnectFailedError, "choose another server with --namesrv or KOUROU_NAMESRV"),
    (
        AddressInUseError,
        "choose other ports by the command's options, such as --namesrv-port; 0 means any free one",
    ),
    (ListenFailedError, "choose the address and ports with --listen, --port and --namesrv-port"),
    (
        CorruptRecordError,
        "copy the store before you repair it; `kourou store check` shows all problems",
    ),
    (StoreUnusableError, "free some space, change its owner or mode, or choose another directory"),
    (WaitEndedError, "run the same command again to continue; --wait sets the longest wait"),
    (RequestTimeoutError, "the server may be busy or down; use --timeout to wait longer"),
    (InternalError, f"set {TRACEBACK_VARIABLE}=1, run it again, and report the output"),
)
"""Remedies that depend on the command line, which the error texts therefore cannot name."""


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code for `error`; None for an error that is not Kourou's.

    If the deadline interrupted a retry, the error of the try before determines the code, because it
    is more specific.
    """
    if isinstance(error, RequestTimeoutError) and isinstance(error.__cause__, KourouError):
        return exit_code_of(error.__cause__)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return None


def report(error: BaseException, *, as_json: bool = False) -> None:
    """Print `error` on stderr: one line, and a second line if there is a remedy.

    As JSON it is one object: error, kind (the class), exit_code, remedy or null, and the response
    code of a server that refused, or null.
    """
    if isinstance(error, KeyboardInterrupt):
        return
    text = str(error)
    if isinstance(error, RemoteError) and error.remark:
        text = f"{error.remark.strip()} (code {error.code})"
    text = one_line(text) or type(error).__name__
    remedy = _remedy(error)
    if isinstance(error, RequestTimeoutError):  # the remedy for the earlier failure is more useful
        remedy = _remedy(error.__cause__) or remedy
    if as_json:
        code = error.code if isinstance(error, RemoteError) else None
        exit_code = FAILED if (known := exit_code_of(error)) is None else known
        print_json_error(text, type(error).__name__, exit_code, remedy=remedy, code=code)
    else:
        print_stderr(f"Error: {text}")
        if remedy is not None:
            print_stderr(f"  {remedy}")
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)


def _remedy(error: BaseException | None) -> str | None:
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return remedy
    return None


def print_json_error(
    text: str, kind: str, exit_code: int, *, remedy: str | None = None, code: int | None = None
) -> None:
    """Print an error as a JSON object on stderr."""
    error = {"error": text, "kind": kind, "exit_code": exit_code, "remedy": remedy, "code": code}
    print_stderr(json.dumps(error, ensure_ascii=False))


def print_stderr(text: str) -> None:
    """Print a line on stderr, so that stdout contains only the requested output."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # the only print of the command line


def one_line(text: str) -> str:
    """Return `text` with line breaks and control characters as escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
