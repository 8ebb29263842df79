"""The processes of a cluster on one machine: names, roles and ports. Pure.

    namesrv-1, namesrv-2, ...   name servers
    broker-a, broker-b, ...     masters, each with the broker name of the same text
    broker-a-1, broker-a-2, ... slaves of broker-a, with these broker ids

Ports are chosen once, because clients and the files of name servers remember addresses. They lie
below the ports that systems assign to outgoing connections, one of which could otherwise take a
port while its server is restarted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
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
_PORTS: Final = range(20_000, 32_000)
"""Linux assigns ports from 32,768 on to outgoing connections, macOS from 49,152 on."""
_PORT_DISTANCE: Final = 4
"""Distance of chosen ports, so that the VIP port of a broker, two below its own, is free."""
_VERSION: Final = 1


class Role(Enum):
    """The part of a process in the cluster."""

    NAMESRV = "namesrv"
    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of processes of a cluster.

    Attributes:
        brokers: masters.
        replicas: copies of each message, the master's included.
        namesrvs: name servers.

    Raises:
        UsageError: a number is out of its range.
    """

    brokers: int
    replicas: int = 1
    namesrvs: int = 1

    def __post_init__(self) -> None:
        _check("--brokers", self.brokers, BROKERS_MAX, "start more clusters for more")
        _check(
            "--replicas",
            self.replicas,
            REPLICAS_MAX,
            "it counts the copies of a message, the master's included",
        )
        _check("--namesrvs", self.namesrvs, NAMESRVS_MAX, "one or two suffice on one machine")

    @property
    def in_sync_replicas(self) -> int:
        """Number of copies that an acknowledged message has.

        Two at most: RocketMQ's classic protocol does not name a slave, so masters count copies by
        host, and all slaves of this cluster are on one host.
        """
        return min(self.replicas, 2)

    def __str__(self) -> str:
        return f"--brokers {self.brokers} --replicas {self.replicas} --namesrvs {self.namesrvs}"


def _check(option: str, value: int, most: int, remedy: str) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"{option} is {value}; it must be 1 to {most}: {remedy}")


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process of the cluster.

    Attributes:
        name: unique in the cluster; of its log file and its directory, too.
        port: for clients.
        broker: the broker name; empty for a name server.
        broker_id: 0 for a master.
        ha_port: of a master with slaves, for its slaves; else 0.
        console_port: of a broker, for /metrics; else 0.
    """

    name: str
    role: Role
    port: int
    broker: str = ""
    broker_id: int = 0
    ha_port: int = 0
    console_port: int = 0

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True)
class Topology:
    """The processes of a cluster: name servers, then each master followed by its slaves."""

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

    def master_of(self, slave: Member) -> Member:
        """Return the master of a slave."""
        return next(m for m in self.of_role(Role.MASTER) if m.broker == slave.broker)


def create_topology(
    shape: Shape, namesrv_port: int, is_free: Callable[[int], bool], rng: Random
) -> Topology:
    """Return a new topology.

    Args:
        shape: the numbers of processes.
        namesrv_port: the port of the first name server; 0 chooses a free one.
        is_free: whether a server could listen on a port now.
        rng: chooses the ports.

    Raises:
        AddressInUseError: `namesrv_port` is in use, or too few ports are free.
    """
    if namesrv_port and not is_free(namesrv_port):
        raise AddressInUseError(f"{HOST}:{namesrv_port}")
    ports = _free_ports(is_free, rng)
    members = [
        Member(
            name=f"namesrv-{number}",
            role=Role.NAMESRV,
            port=(namesrv_port if number == 1 else 0) or next(ports),
        )
        for number in range(1, shape.namesrvs + 1)
    ]
    for letter in range(shape.brokers):
        name = f"broker-{chr(ord('a') + letter)}"
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
        members += [master, *slaves]
    return Topology(shape, tuple(members))


def _free_ports(is_free: Callable[[int], bool], rng: Random) -> Iterator[int]:
    """Yield free ports, each with a free one two below it.

    Raises:
        AddressInUseError: there are no more.
    """
    for port in rng.sample(candidates := _PORTS[::_PORT_DISTANCE], len(candidates)):
        if is_free(port) and is_free(port - 2):
            yield port
    raise AddressInUseError(f"{HOST}:{_PORTS.start}-{_PORTS.stop - 1}")


def member_options(
    topology: Topology, member: Member, directory: str, config: str | None
) -> tuple[list[str], dict[str, str]]:
    """Return the words behind `kourou` that start a member, and its settings of the environment.

    Args:
        topology: the cluster.
        member: the process.
        directory: its own directory.
        config: a file with settings of all brokers, which these override; None without one.
    """
    common = ["--listen", HOST, "--port", str(member.port), "--no-tls", "--ready-json"]
    common += ["--stop-at-eof", "--log-level", "info"]
    if member.role is Role.NAMESRV:
        return ["serve", "namesrv", "--dir", directory, *common], {}
    words = ["serve", "--store", directory, "--namesrv", topology.namesrv, "--no-grpc"]
    words += ["--console-port", str(member.console_port), *common]
    if config is not None:
        words += ["--config", config]
    settings = {
        "CLUSTER_NAME": CLUSTER,
        "BROKER_NAME": member.broker,
        "BROKER_ID": str(member.broker_id),
    }
    if topology.shape.replicas > 1:
        master = member if member.role is Role.MASTER else topology.master_of(member)
        settings |= {
            "BROKER_ROLE": "SYNC_MASTER" if member is master else "SLAVE",
            "IN_SYNC_REPLICAS": str(topology.shape.in_sync_replicas),
            "SLAVE_READ_ENABLE": "true",
        }
        if member is master:
            settings["HA_LISTEN_PORT"] = str(master.ha_port)
        else:
            settings["HA_MASTER_ADDRESS"] = f"{HOST}:{master.ha_port}"
    return words, {f"KOUROU_BROKER_{key}": value for key, value in settings.items()}


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
        shape = Shape(**{key: int(found[key]) for key in ("brokers", "replicas", "namesrvs")})
        members = tuple(
            Member(**{**member, "role": Role(member["role"])}) for member in found["members"]
        )
    except (KeyError, TypeError, UsageError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    expected = shape.namesrvs + shape.brokers * shape.replicas
    if len(members) != expected or len({member.name for member in members}) != expected:
        raise ValueError(f"{len(members)} members, but {expected} by its numbers")
    return Topology(shape, members)
