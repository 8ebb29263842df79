"""Reserved ports for servers that restart.

The port of a stopped server is free, and the system may assign it to the server of another test. A
socket that is bound with SO_REUSEADDR but does not listen reserves the port on Linux: the system
does not assign the port, and a server that also uses SO_REUSEADDR can still listen on it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Reserve `count` ports during the block; on other systems than Linux, only find free ones."""
    holders = [socket.socket() for _ in range(count)]
    for holder in holders:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
    ports = [int(holder.getsockname()[1]) for holder in holders]
    if sys.platform != "linux":
        for holder in holders:
            holder.close()
    try:
        yield ports
    finally:
        for holder in holders:
            holder.close()
