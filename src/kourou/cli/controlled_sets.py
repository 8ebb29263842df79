"""Sets of brokers whose masters controllers elect, as commands see them.

`ask_sets` requests the facts; the judgement about them is pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from kourou.cli import output
from kourou.cli.admin_session import GRACE_S, admin_config
from kourou.cli.exits import one_line
from kourou.client.administration.admin import AdminClient
from kourou.errors import KourouError, NoRouteError, UsageError
from kourou.model.route import MASTER_ID
from kourou.protocol.controller.headers import ReplicaIdentity, ReplicasInfo
from kourou.remoting.network import parse_address
from kourou.supervising.directory import ClusterDirectory

T = TypeVar("T")

NO_MASTER: Final = "no master: its queues accept no sends"
_REQUESTS_MAX: Final = 5
"""Requests in a row that a command may wait for."""


def names_without_master(brokers: Iterable[tuple[str, int]]) -> set[str]:
    """Return the names of registered brokers, given with their ids, that have slaves only."""
    registered = set(brokers)
    return {name for name, _ in registered if (name, MASTER_ID) not in registered}


@dataclass(frozen=True, kw_only=True)
class ControlledSet:
    """A set as its controllers know it; `problem` is the reason if they do not answer.

    Attributes:
        controllers: their addresses, joined by `;`.
        info: None if they do not answer, or do not know the set.
    """

    controllers: str
    info: ReplicasInfo | None = None
    problem: str = ""

    @property
    def replicas(self) -> tuple[ReplicaIdentity, ...]:
        """All replicas that are registered."""
        if self.info is None:
            return ()
        return (*self.info.in_sync_replicas, *self.info.not_in_sync_replicas)

    @property
    def refusal(self) -> str:
        """Why the controllers decide nothing about the set; empty if they do."""
        return "" if self.info is None else self.info.refusal or ""

    @property
    def in_sync_ids(self) -> list[int]:
        """The ids of the in-sync set."""
        replicas = () if self.info is None else self.info.in_sync_replicas
        return sorted(one.broker_id for one in replicas if one.broker_id is not None)

    @property
    def live_in_sync_ids(self) -> list[int]:
        """The ids of the members of the in-sync set that are alive."""
        return [id_ for id_ in self.in_sync_ids if (one := self.replica(id_)) and one.alive]

    @property
    def master(self) -> ReplicaIdentity | None:
        """The master, if there is one and it is alive."""
        found = None if self.info is None else self.replica(self.info.master_broker_id)
        return found if found is not None and found.alive else None

    def replica(self, broker_id: int | None) -> ReplicaIdentity | None:
        """Return a replica by its id."""
        return next((one for one in self.replicas if one.broker_id == broker_id), None)

    def replica_at(self, address: str) -> ReplicaIdentity | None:
        """Return a replica by its address for clients."""
        return next((one for one in self.replicas if one.broker_address == address), None)


@dataclass(frozen=True, kw_only=True)
class Controlling:
    """The servers of a command that changes controlled sets.

    Attributes:
        namesrv: the name servers.
        controllers: the controllers; empty: those of the registered brokers.
        timeout_s: of each request.
    """

    namesrv: str
    controllers: str
    timeout_s: float

    @classmethod
    def of_options(
        cls, directory: Path | None, namesrv: str, controllers: str | None, timeout_s: float
    ) -> Controlling:
        """Return the servers that a command names.

        Raises:
            UsageError: the cluster of the directory has no controllers, or there is none; or an
                address is malformed.
        """
        for address in (controllers or "").split(";"):
            if address.strip():
                parse_address(address)
        if directory is None:
            return cls(namesrv=namesrv, controllers=controllers or "", timeout_s=timeout_s)
        files = ClusterDirectory(directory)
        topology = files.topology()
        if topology is None:
            raise UsageError(f"{files.path} has no cluster: name the --dir of a `kourou cluster`")
        if not topology.controllers:
            raise UsageError(
                f"{directory} has no cluster with controllers: its masters are not elected"
            )
        return cls(
            namesrv=topology.namesrv,
            controllers=controllers or topology.controllers,
            timeout_s=timeout_s,
        )

    def run(self, action: Callable[[AdminClient], Awaitable[T]], limit_s: float = 0) -> T:
        """Connect, call `action`, and return its result.

        Args:
            action: sends several requests, one after the other.
            limit_s: the longest time that it waits beside them.

        Raises:
            TransportError: no answer arrived in time, or no server could be connected to.
            RemoteError: a server refused.
        """

        async def answer() -> T:
            config = replace(admin_config(self.timeout_s), namespace="")
            async with AdminClient(self.namesrv, config=config) as admin:
                return await action(admin)

        most_s = limit_s + _REQUESTS_MAX * self.timeout_s + GRACE_S
        return output.run_bounded(answer(), most_s, f"the cluster at {self.namesrv}")


def print_master(row: Mapping[str, object], *, as_json: bool) -> None:
    """Print the master of a set: `broker`, `id`, `address` and `epoch`, and for JSON the rest."""
    if as_json:
        output.print_json(row)
    else:
        output.print_line(
            f"{row['broker']}: replica {row['id']} ({row['address']}) is master in epoch "
            f"{row['epoch']}"
        )


async def ask_sets(admin: AdminClient, controllers: Mapping[str, str]) -> dict[str, ControlledSet]:
    """Return the sets by broker name, as their controllers know them.

    Args:
        admin: sends the requests.
        controllers: the addresses of the controllers by broker name.
    """
    groups: dict[str, list[str]] = {}
    for name, addresses in controllers.items():
        groups.setdefault(addresses, []).append(name)
    asked = [_ask(admin, addresses, names) for addresses, names in groups.items()]
    return {name: one for found in await asyncio.gather(*asked) for name, one in found.items()}


async def _ask(
    admin: AdminClient, controllers: str, names: Sequence[str]
) -> dict[str, ControlledSet]:
    try:
        found = await admin.broker_sets(controllers, names)
    except KourouError as error:
        problem = one_line(str(error))
        return {name: ControlledSet(controllers=controllers, problem=problem) for name in names}
    return {
        name: ControlledSet(
            controllers=controllers,
            info=found.get(name),
            problem="" if name in found else "the controllers do not know it",
        )
        for name in names
    }


async def controllers_of(admin: AdminClient, address: str) -> str:
    """Return the controllers of the broker at `host:port`; empty if its role is fixed."""
    config = await admin.broker_config(address)
    is_controlled = config.get("enableControllerMode") == "true"
    return config.get("controllerAddr", "") if is_controlled else ""


async def find_set(admin: AdminClient, broker: str, controllers: str) -> ControlledSet:
    """Return the set of a broker name.

    Args:
        admin: sends the requests.
        broker: the broker name.
        controllers: their addresses; empty: those that a registered broker of the name has.

    Raises:
        NoRouteError: no broker of the name is registered at the name servers.
        UsageError: its role is fixed, or the controllers do not know the set.
        NoLeaderError: no controller leads.
    """
    controllers = controllers or await _registered_controllers(admin, broker)
    info = (await admin.broker_sets(controllers, [broker])).get(broker)
    if info is None:
        raise UsageError(f"the controllers {controllers} do not know the broker set {broker}")
    return ControlledSet(controllers=controllers, info=info)


async def _registered_controllers(admin: AdminClient, broker: str) -> str:
    brokers = (await admin.cluster_info()).brokers
    if broker not in brokers:
        known = ", ".join(sorted(brokers)) or "none"
        raise NoRouteError(
            f"no broker {broker} is registered; registered brokers: {known}. Name its controllers "
            "with --controllers"
        )
    problem: KourouError | None = None
    for address in brokers[broker].broker_addrs.values():
        try:
            controllers = await controllers_of(admin, address)
        except KourouError as error:
            problem = error
            continue
        if controllers:
            return controllers
        raise UsageError(f"{broker} has a fixed master: no controllers elect it")
    assert problem is not None, "a registered broker has an address"
    raise problem
