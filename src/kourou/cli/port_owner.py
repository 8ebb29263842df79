"""Who listens on this machine's ports, as Linux tells in /proc; elsewhere nobody is known.

A process of another user is seen only by root: its ports have an owner without a name.
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
    """A process that listens.

    Attributes:
        pid: its id.
        command: its command line, separated by blanks.
    """

    pid: int
    command: str

    @property
    def is_broker(self) -> bool:
        """Its command line names Kourou or RocketMQ."""
        return "kourou" in self.command or "rocketmq" in self.command

    def __str__(self) -> str:
        program = Path(self.command.split(" ")[0]).name or "a process"
        known = "kourou" if "kourou" in self.command else "RocketMQ" if self.is_broker else program
        return f"{known} (pid {self.pid})"


def port_owners(ports: Collection[int], proc: Path = Path("/proc")) -> dict[int, PortOwner]:
    """Return who listens on each of the TCP ports, on any address; those that can be told."""
    sockets = dict(_listening(proc))
    wanted = {inode: port for inode, port in sockets.items() if port in ports}
    owners: dict[int, PortOwner] = {}
    for process in _processes(proc):
        if len(owners) == len(set(wanted.values())):
            break
        try:
            for link in (process / "fd").iterdir():
                port = wanted.get(str(link.readlink()))
                if port is not None:
                    owners.setdefault(port, PortOwner(int(process.name), _command(process)))
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
    return owners


def _listening(proc: Path) -> Iterator[tuple[str, int]]:
    """Yield what a descriptor of each listening socket links to, and the socket's port.

    A line of the table: `number: address:port remote state queues timer retransmits uid timeout
    inode ...`, the port and the state in hexadecimal.
    """
    for table in _TABLES:
        try:
            lines = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        # A busy machine has lines by the ten thousand, of connections; few of them listen.
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
