"""The addresses by which other machines may reach this one, as far as the system tells.

Python has no call for it: on Linux the kernel is asked for each interface's IPv4 address and its
table of IPv6 addresses is read; elsewhere one address a family is found by a datagram socket.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915
"""Linux's request for the IPv4 address of an interface."""
_IF_INET6: Final = Path("/proc/net/if_inet6")
_DOCUMENTATION: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that nobody has (RFC 5737, RFC 3849): nothing is sent to them either."""


def machine_addresses() -> list[str]:
    """Return this machine's addresses, IPv4 first; not those of loopback and of one link only."""
    found = [*_of_interfaces(), *_of_routes()]
    usable = [one for one in dict.fromkeys(found) if _is_for_others(one)]
    return sorted(usable, key=lambda address: ":" in address)


def _of_interfaces() -> Iterator[str]:
    if not sys.platform.startswith("linux"):
        return
    import fcntl  # noqa: PLC0415  # not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has none
            yield socket.inet_ntoa(answer[20:24])
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return  # IPv6 is off
    for line in lines:
        yield str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))


def _of_routes() -> Iterator[str]:
    """Yield the addresses from which this machine would send to others."""
    for family, other in _DOCUMENTATION:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as asking:
                asking.connect((other, 9))
                yield str(asking.getsockname()[0])
        except OSError:
            continue  # no route, or no such family


def _is_for_others(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)
