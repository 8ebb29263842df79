"""Facts of this machine: its addresses, the processes that listen on its ports, its memory.

Python has no call for them. On Linux, an ioctl returns the IPv4 address of each interface,
/proc/net/if_inet6 lists the IPv6 addresses, and /proc/net/tcp the listening sockets. On all
systems, a datagram socket shows the source address of the default route, one for each address
family.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from kourou.decimals import is_decimal

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


_LISTENING: Final = "0A"
_TABLES: Final = ("net/tcp", "net/tcp6")


@dataclass(frozen=True, slots=True)
class PortOwner:
    """A process that listens on a port.

    Attributes:
        pid: the process id.
        command: the command line, separated by blanks.
    """

    pid: int
    command: str

    @property
    def is_broker(self) -> bool:
        """True if its command line contains `kourou` or `rocketmq`."""
        return "kourou" in self.command or "rocketmq" in self.command

    def __str__(self) -> str:
        program = Path(self.command.split(" ")[0]).name or "a process"
        known = "kourou" if "kourou" in self.command else "RocketMQ" if self.is_broker else program
        return f"{known} (pid {self.pid})"


def port_owners(ports: Collection[int], proc: Path = Path("/proc")) -> dict[int, PortOwner]:
    """Return the known owners of the TCP ports, whatever address they listen on."""
    sockets = dict(_listening(proc))
    ports_by_socket = {inode: port for inode, port in sockets.items() if port in ports}
    owners: dict[int, PortOwner] = {}
    for process in _processes(proc):
        if len(owners) == len(set(ports_by_socket.values())):
            break
        try:
            for link in (process / "fd").iterdir():
                port = ports_by_socket.get(str(link.readlink()))
                if port is not None:
                    owners.setdefault(port, PortOwner(int(process.name), _command(process)))
        except OSError:
            continue  # the process has ended, or belongs to another user
    return owners


def _listening(proc: Path) -> Iterator[tuple[str, int]]:
    """Yield the link target of a descriptor of each listening socket, and the socket's port.

    A line of the table: `number: address:port remote state queues timer retransmits uid timeout
    inode ...`, the port and the state in hexadecimal.
    """
    for table in _TABLES:
        try:
            lines = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        # A busy machine has tens of thousands of connections; filter before the split.
        for fields in [line.split() for line in lines if f" {_LISTENING} " in line]:
            if len(fields) > 9 and fields[3] == _LISTENING:
                yield f"socket:[{fields[9]}]", int(fields[1].rpartition(":")[2], 16)


def _command(process: Path) -> str:
    command = (process / "cmdline").read_bytes().rstrip(b"\0")
    return command.replace(b"\0", b" ").decode(errors="replace")


def _processes(proc: Path) -> list[Path]:
    try:
        return [path for path in proc.iterdir() if is_decimal(path.name)]
    except OSError:
        return []


_ROOT: Final = Path("/")


def memory_bytes(root: Path = _ROOT) -> int:
    """Return the machine's memory in bytes, or the smallest control group limit below that.

    Args:
        root: the directory that holds `proc` and `sys`.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((machine, *_limits(root)))


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's control groups (v1 and v2) and of their ancestors.

    In a container, `/proc/self/cgroup` may name the group by its path on the host, which does not
    exist below the container's mount. The container's own group is then found as the root of that
    mount.
    """
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                mount, name = root / "sys/fs/cgroup", "memory.max"
            elif "memory" in controllers.split(","):
                mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            else:
                continue
            group = PurePosixPath(path.removeprefix("/"))
            for one in (group, *group.parents):
                with suppress(OSError, ValueError):  # no such group; "max"
                    yield int((mount / one / name).read_text())
