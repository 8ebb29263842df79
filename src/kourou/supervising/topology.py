"""The processes of a cluster on one machine: names, roles and ports. Pure.

    namesrv-1, namesrv-2, ...   name servers
    proxy-1, proxy-2, ...       proxies for gRPC clients
    broker-a, broker-b, ...     masters, each with the broker name of the same text
    broker-a-1, broker-a-2, ... slaves of broker-a, with these broker ids

With controllers, which elect the masters:

    etcd                        holds the state of the controllers, where its program is installed
    controller-1, ...           controllers
    broker-a-1, broker-a-2, ... replicas of broker-a

Ports are chosen once, because clients and the files of name servers remember addresses. They lie
below the ports that systems assign to outgoing connections, one of which could otherwise take a
port while its server is restarted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from random import Random
from typing import Any, Final

from kourou.errors import AddressInUseError, UsageError

HOST: Final = "127.0.0.1"
CLUSTER: Final = "DefaultCluster"
BROKERS_MAX: Final = 26
"""Brokers are named by letters."""
REPLICAS_MAX: Final = 5
NAMESRVS_MAX: Final = 9
CONTROLLERS_MAX: Final = 9
PROXIES_MAX: Final = 9
_PORTS: Final = range(20_000, 32_000)
"""Linux assigns ports from 32,768 on to outgoing connections, macOS from 49,152 on."""
_PORT_DISTANCE: Final = 4
"""Distance of chosen ports, so that the VIP port of a broker, two below its own, is free."""
_VERSION: Final = 1
NEEDS_ETCD: Final = (
    "needs the program etcd, which is not in PATH: install it (Debian's package etcd-server)"
)


class Role(Enum):
    """The part of a process in the cluster."""

    NAMESRV = "namesrv"
    PROXY = "proxy"
    ETCD = "etcd"
    CONTROLLER = "controller"
    MASTER = "master"
    SLAVE = "slave"
    REPLICA = "replica"
    """A broker that is master or slave as controllers decide."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of processes of a cluster.

    Attributes:
        brokers: masters.
        replicas: copies of each message, the master's included.
        namesrvs: name servers.
        controllers: they elect the masters; 0: masters are fixed.
        proxies: they serve gRPC clients.

    Raises:
        UsageError: a number is out of its range.
    """

    brokers: int
    replicas: int = 1
    namesrvs: int = 1
    controllers: int = 0
    proxies: int = 0

    def __post_init__(self) -> None:
        _check("--brokers", self.brokers, BROKERS_MAX, "start more clusters for more")
        _check(
            "--replicas",
            self.replicas,
            REPLICAS_MAX,
            "it counts the copies of a message, the master's included",
        )
        _check("--namesrvs", self.namesrvs, NAMESRVS_MAX, "one or two suffice on one machine")
        _check("--controllers", self.controllers, CONTROLLERS_MAX, "0 means fixed masters", least=0)
        _check("--proxies", self.proxies, PROXIES_MAX, "each serves all brokers", least=0)

    @property
    def in_sync_replicas(self) -> int:
        """Number of copies without which no message is acknowledged.

        With fixed masters two at most: RocketMQ's classic protocol does not name a slave, so
        masters count copies by host, and all slaves of this cluster are on one host. With
        controllers a message is on all members of the in-sync set, and this is its least size: of
        two replicas one may be lost, and sends go on.
        """
        if self.controllers:
            return 2 if self.replicas > 2 else 1
        return min(self.replicas, 2)

    def __str__(self) -> str:
        text = f"--brokers {self.brokers} --replicas {self.replicas} --namesrvs {self.namesrvs}"
        for name, number in (("controllers", self.controllers), ("proxies", self.proxies)):
            text += f" --{name} {number}" if number else ""
        return text


def _check(option: str, value: int, most: int, remedy: str, *, least: int = 1) -> None:
    if not least <= value <= most:
        raise UsageError(f"{option} is {value}; it must be {least} to {most}: {remedy}")


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process of the cluster.

    Attributes:
        name: unique in the cluster; of its log file and its directory, too.
        port: for clients.
        broker: the broker name; empty for other servers.
        broker_id: 0 for a master. Of a replica, the id that controllers assign if the replicas
            start in their order, as they do at first.
        ha_port: of a master with slaves, and of a replica, for slaves; else 0.
        console_port: of a broker, controller or proxy, for /metrics; else 0.
        peer_port: of etcd, which also listens for other members; else 0.
    """

    name: str
    role: Role
    port: int
    broker: str = ""
    broker_id: int = 0
    ha_port: int = 0
    console_port: int = 0
    peer_port: int = 0

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports on which the process listens."""
        ports = (self.port, self.ha_port, self.console_port, self.peer_port)
        return tuple(port for port in ports if port)

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True)
class Topology:
    """The processes of a cluster: name servers, controllers, each set of brokers, then proxies."""

    shape: Shape
    members: tuple[Member, ...]

    def of_role(self, role: Role) -> tuple[Member, ...]:
        """Return the members with this role."""
        return tuple(member for member in self.members if member.role is role)

    def names(self, *roles: Role) -> tuple[str, ...]:
        """Return the names of the members with one of these roles."""
        return tuple(member.name for member in self.members if member.role in roles)

    @property
    def namesrv(self) -> str:
        """The addresses of the name servers, as clients take them."""
        return ";".join(member.address for member in self.of_role(Role.NAMESRV))

    @property
    def controllers(self) -> str:
        """The addresses of the controllers, as brokers take them; empty without."""
        return ";".join(member.address for member in self.of_role(Role.CONTROLLER))

    @property
    def proxies(self) -> str:
        """The addresses for gRPC clients, as they take them; empty without proxies."""
        return ";".join(member.address for member in self.of_role(Role.PROXY))

    def sets(self) -> dict[str, tuple[Member, ...]]:
        """Return the members of each set of brokers, by broker name."""
        names = dict.fromkeys(member.broker for member in self.members if member.broker)
        return {name: tuple(m for m in self.members if m.broker == name) for name in names}

    def start_groups(self, *, in_order: bool) -> list[tuple[str, ...]]:
        """Return the names in the order of the start.

        Args:
            in_order: start the replicas of a set one after the other, so that controllers assign
                ids in that order.
        """
        first = self.names(Role.NAMESRV, Role.ETCD)
        brokers = [member for member in self.members if member.broker]
        ids = sorted({member.broker_id for member in brokers}) if in_order else []
        ordered = [tuple(m.name for m in brokers if m.broker_id == number) for number in ids]
        together = tuple(member.name for member in brokers)
        proxies = self.names(Role.PROXY)
        groups = [first, self.names(Role.CONTROLLER), *(ordered or [together])]
        return [*groups, proxies] if proxies else groups

    def stop_groups(self) -> list[tuple[str, ...]]:
        """Return the names in the order of the stop, in which elected masters are not first.

        Proxies come first: they end the calls in progress, and release what clients hold.
        """
        roles = ((Role.PROXY,), (Role.MASTER,), (Role.SLAVE, Role.REPLICA), (Role.CONTROLLER,))
        return [self.names(*group) for group in (*roles, (Role.NAMESRV, Role.ETCD))]

    def master_of(self, slave: Member) -> Member:
        """Return the master of a slave."""
        return next(m for m in self.of_role(Role.MASTER) if m.broker == slave.broker)


def create_topology(
    shape: Shape,
    namesrv_port: int,
    is_free: Callable[[int], bool],
    rng: Random,
    *,
    has_etcd: bool = False,
) -> Topology:
    """Return a new topology.

    Args:
        shape: the numbers of processes.
        namesrv_port: the port of the first name server; 0 chooses a free one.
        is_free: whether a server could listen on a port now.
        rng: chooses the ports.
        has_etcd: the program of etcd is installed; without it a controller has its state in a file.

    Raises:
        UsageError: several controllers need etcd.
        AddressInUseError: `namesrv_port` is in use, or too few ports are free.
    """
    if shape.controllers > 1 and not has_etcd:
        raise UsageError(f"--controllers {shape.controllers} {NEEDS_ETCD}, or --controllers 1")
    if namesrv_port and not is_free(namesrv_port):
        raise AddressInUseError(f"{HOST}:{namesrv_port}")
    ports = _free_ports(lambda port: port != namesrv_port and is_free(port), rng)
    members = [
        Member(
            name=f"namesrv-{number}",
            role=Role.NAMESRV,
            port=(namesrv_port if number == 1 else 0) or next(ports),
        )
        for number in range(1, shape.namesrvs + 1)
    ]
    members += _controllers(shape, ports, has_etcd=has_etcd)
    for letter in range(shape.brokers):
        name = f"broker-{chr(ord('a') + letter)}"
        members += (
            _replicas(shape, name, ports) if shape.controllers else _fixed(shape, name, ports)
        )
    members += [
        Member(name=f"proxy-{number}", role=Role.PROXY, port=next(ports), console_port=next(ports))
        for number in range(1, shape.proxies + 1)
    ]
    return Topology(shape, tuple(members))


def _controllers(shape: Shape, ports: Iterator[int], *, has_etcd: bool) -> list[Member]:
    members = []
    if shape.controllers and has_etcd:
        port, peer_port = next(ports), next(ports)
        members.append(Member(name="etcd", role=Role.ETCD, port=port, peer_port=peer_port))
    return members + [
        Member(
            name=f"controller-{number}",
            role=Role.CONTROLLER,
            port=next(ports),
            console_port=next(ports),
        )
        for number in range(1, shape.controllers + 1)
    ]


def _replicas(shape: Shape, name: str, ports: Iterator[int]) -> list[Member]:
    """Return the brokers of a set whose master controllers elect."""
    return [
        Member(
            name=f"{name}-{number}",
            role=Role.REPLICA,
            broker=name,
            broker_id=number,
            port=next(ports),
            ha_port=next(ports),
            console_port=next(ports),
        )
        for number in range(1, shape.replicas + 1)
    ]


def _fixed(shape: Shape, name: str, ports: Iterator[int]) -> list[Member]:
    """Return a master and its slaves."""
    master = Member(
        name=name,
        role=Role.MASTER,
        broker=name,
        port=next(ports),
        ha_port=next(ports) if shape.replicas > 1 else 0,
        console_port=next(ports),
    )
    slaves = [
        Member(
            name=f"{name}-{number}",
            role=Role.SLAVE,
            broker=name,
            broker_id=number,
            port=next(ports),
            console_port=next(ports),
        )
        for number in range(1, shape.replicas)
    ]
    return [master, *slaves]


def _free_ports(is_free: Callable[[int], bool], rng: Random) -> Iterator[int]:
    """Yield free ports, each with a free one two below it.

    Raises:
        AddressInUseError: there are no more.
    """
    for port in rng.sample(candidates := _PORTS[::_PORT_DISTANCE], len(candidates)):
        if is_free(port) and is_free(port - 2):
            yield port
    raise AddressInUseError(f"{HOST}:{_PORTS.start}-{_PORTS.stop - 1}")


def encode_topology(topology: Topology) -> str:
    """Return the topology as JSON."""
    members = [asdict(member) | {"role": member.role.value} for member in topology.members]
    found = {"version": _VERSION, **asdict(topology.shape), "members": members}
    return json.dumps(found, indent=2) + "\n"


def decode_topology(text: str) -> Topology:
    """Return the topology that `encode_topology` wrote.

    Raises:
        ValueError: it is not such a text.
    """
    found: Mapping[str, Any] = json.loads(text)
    try:
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']} is not {_VERSION}")
        numbers = {field.name: found.get(field.name, field.default) for field in fields(Shape)}
        shape = Shape(**{name: int(number) for name, number in numbers.items()})
        members = tuple(
            Member(**{**member, "role": Role(member["role"])}) for member in found["members"]
        )
    except (KeyError, TypeError, UsageError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    expected = shape.namesrvs + shape.controllers + shape.brokers * shape.replicas + shape.proxies
    expected += any(member.role is Role.ETCD for member in members)
    if len(members) != expected or len({member.name for member in members}) != expected:
        raise ValueError(f"{len(members)} members, but {expected} by its numbers")
    return Topology(shape, members)
