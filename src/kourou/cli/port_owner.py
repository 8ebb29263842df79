"""Processes that listen on ports of this machine, read from Linux's /proc; empty elsewhere.

Only root can see the processes of other users; without root, their ports have no known owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
        return [path for path in proc.iterdir() if path.name.isdigit()]
    except OSError:
        return []
