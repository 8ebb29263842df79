"""Runs etcd as a process of a supervisor: it is announced when it serves, and stops with stdin.

    python -m kourou.supervising.etcd_child 127.0.0.1:2379 etcd --data-dir DIR ...

The process becomes etcd, so that its pid and its exit code are those of etcd. Before, it creates a
companion process, which prints one line of JSON when etcd answers at the address, and stops etcd
when stdin ends, as etcd itself does not. The companion ends with etcd.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from typing import Final

_TICK_S: Final = 0.1
"""Pause between the questions to an etcd that does not serve yet."""
_CHECK_S: Final = 1.0
"""Pause between the checks whether etcd still runs."""
_ANSWER_S: Final = 1.0


def main(address: str, *command: str) -> None:
    """Become the program of the command; see the module."""
    etcd = os.getpid()
    if os.fork() == 0:
        _accompany(etcd, address)
        os._exit(0)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"Error: {command[0]} cannot be run: {error.strerror}")


def _accompany(etcd: int, address: str) -> None:
    is_announced = False
    while os.getppid() == etcd:  # else it has ended, and its pid may be another program's
        if not is_announced and is_serving(address):
            _announce(address)
            is_announced = True
        readable, _, _ = select.select([0], [], [], _CHECK_S if is_announced else _TICK_S)
        if readable and not os.read(0, 4096):
            with suppress(ProcessLookupError):
                os.kill(etcd, signal.SIGTERM)
            return


def is_serving(address: str) -> bool:
    """Return whether etcd answers, and has a leader."""
    try:
        with closing(HTTPConnection(address, timeout=_ANSWER_S)) as connection:
            connection.request("GET", "/health")
            found = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return False
    return isinstance(found, dict) and found.get("health") == "true"


def _announce(address: str) -> None:
    os.write(1, json.dumps({"ready": True, "etcd": address}).encode() + b"\n")
    os.close(1)  # its reader waits for the end of etcd only


if __name__ == "__main__":
    main(*sys.argv[1:])
