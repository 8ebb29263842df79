"""Ports for servers that end and start again: nobody else gets them meanwhile.

A port that a server got from the system is free again while it is down, and another test's server
may be given it. Linux lets a socket listen where others of SO_REUSEADDR are bound that do not, and
gives a port at which one is bound to nobody by itself.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Hold so many ports for the length of the block; elsewhere than on Linux only find them."""
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
