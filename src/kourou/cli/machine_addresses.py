"""Addresses at which other machines can connect to this one, as far as the system reports them.

Python has no call for this. On Linux, an ioctl returns the IPv4 address of each interface, and
/proc/net/if_inet6 lists the IPv6 addresses. On all systems, a datagram socket shows the source
address of the default route, one for each address family.
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
"""Addresses reserved for documentation (RFC 5737, RFC 3849); nothing is sent to them."""


def machine_addresses() -> list[str]:
    """Return this machine's addresses, IPv4 first, without loopback and link-local ones."""
    found = [*_of_interfaces(), *_of_routes()]
    usable = [one for one in dict.fromkeys(found) if _is_external(one)]
    return sorted(usable, key=lambda address: ":" in address)


def _of_interfaces() -> Iterator[str]:
    if not sys.platform.startswith("linux"):
        return
    import fcntl  # noqa: PLC0415  # not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # the interface has no IPv4 address
            yield socket.inet_ntoa(answer[20:24])
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return  # IPv6 is disabled
    for line in lines:
        yield str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))


def _of_routes() -> Iterator[str]:
    """Yield the source addresses of this machine for packets to other machines."""
    for family, other in _DOCUMENTATION:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((other, 9))
                yield str(probe.getsockname()[0])
        except OSError:
            continue  # no route, or no such family


def _is_external(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)
