"""The masters that controllers elect in a cluster on one machine: observed, and reported as events.

    event           fields
    master.elected  broker, child, id, address, epoch
    master.lost     broker: no replica of it is a master that is alive
    cluster.waiting reason: what is missing, when all processes have served for 10 s, and a set does
                    not accept sends yet; reported once
    cluster.ready   all processes serve, and each set accepts sends; reported once

Source of the facts: the leading controller (1006), and the first name server, where clients look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.errors import KourouError
from kourou.model.route import MASTER_ID
from kourou.protocol.controller.headers import ReplicasInfo
from kourou.protocol.routes import ClusterInfo
from kourou.remoting.runtime import Runtime
from kourou.supervising.supervisor import Report
from kourou.supervising.topology import Member, Role, Topology

_PERIOD_S: Final = 0.25
_TIMEOUT_MS: Final = 1_000
_PATIENCE: Final = 40
"""Looks at a cluster whose processes all serve, before what is missing is reported: 10 s."""
_PAUSE: Final = {"electionsPaused": "true"}


class ElectedMasters:
    """Observes the masters of one cluster.

    Attributes:
        masters: child that is master, by broker name; sets without a master are left out.
    """

    def __init__(
        self, topology: Topology, report: Report, *, runtime: Runtime | None = None
    ) -> None:
        """Observe the cluster of a supervisor, whose events go to `self.report`.

        Args:
            topology: the processes.
            report: called with each event.
            runtime: network and clock, for tests; None: those of the system.
        """
        self._topology = topology
        self._runtime = runtime
        self._report = report
        self._sets = topology.sets()
        self._epochs: dict[str, int] = {}
        self._serve_all = False
        self._is_ready = False
        self._looks_left = _PATIENCE
        self.masters: dict[str, str] = {}

    def report(self, event: str, fields: Mapping[str, Any]) -> None:
        """Report an event of the supervisor; keep back that all processes serve."""
        if event == "cluster.ready":
            self._serve_all = True
        else:
            self._report(event, fields)

    async def run(self) -> None:
        """Observe until cancelled."""
        async with self._client() as admin:
            while True:
                try:
                    missing = await self._look(admin)
                except KourouError as error:  # servers start and end all the time
                    missing = str(error)
                self._note_missing(missing)
                await asyncio.sleep(_PERIOD_S)

    async def before_stop(self) -> list[str]:
        """Let the controllers elect nobody any more, and return the masters, which stop first.

        Otherwise a slave would be elected while its master stops.
        """
        async with self._client() as admin:
            controllers = self._topology.of_role(Role.CONTROLLER)
            await asyncio.gather(
                *(admin.update_controller_config(one.address, _PAUSE) for one in controllers),
                return_exceptions=True,
            )
            with suppress(KourouError):
                await self._look(admin)
        return list(self.masters.values())

    async def _look(self, admin: AdminClient) -> str:
        """Note masters; return what a set lacks to accept sends, or an empty text.

        Raises:
            KourouError: no controller leads, or the name server does not answer.
        """
        found, routes = await asyncio.gather(
            admin.broker_sets(self._topology.controllers, self._sets), admin.cluster_info()
        )
        missing = []
        for broker, members in self._sets.items():
            info = found.get(broker, ReplicasInfo())
            self._note(broker, info, None if info.refusal else live_master(info, members))
            missing.append(self._missing(broker, info, routes))
        return next(filter(None, missing), "")

    def _note_missing(self, missing: str) -> None:
        """Report that the cluster is ready, or what it has lacked for some time."""
        if not self._serve_all or self._is_ready:
            return
        self._looks_left -= 1
        if not missing:
            self._is_ready = True
            self._report("cluster.ready", {})
        elif self._looks_left == 0:
            self._report("cluster.waiting", {"reason": missing})

    def _note(self, broker: str, info: ReplicasInfo, master: Member | None) -> None:
        if master is None:
            if self.masters.pop(broker, None) is not None:
                self._report("master.lost", {"broker": broker})
            return
        epoch = info.master_epoch or 0
        if (self.masters.get(broker), self._epochs.get(broker)) == (master.name, epoch):
            return
        self.masters[broker], self._epochs[broker] = master.name, epoch
        fields = {"broker": broker, "child": master.name, "id": info.master_broker_id}
        self._report("master.elected", fields | {"address": master.address, "epoch": epoch})

    def _missing(self, broker: str, info: ReplicasInfo, routes: ClusterInfo) -> str:
        """Return why a set does not accept sends; empty if it has a master and is large enough."""
        if info.refusal:
            return info.refusal
        if broker not in self.masters:
            return f"{broker} has no master"
        data = routes.brokers.get(broker)
        address = None if data is None else data.broker_addrs.get(MASTER_ID)
        if address != info.master_address:
            return f"clients do not find the master of {broker}: it does not accept sends yet"
        count, least = len(info.in_sync_replicas), self._topology.shape.in_sync_replicas
        return f"{broker} has {count} replicas in sync, of {least}" if count < least else ""

    def _client(self) -> AdminClient:
        config = AdminConfig(admin_timeout_ms=_TIMEOUT_MS)
        return AdminClient(self._topology.namesrv, config=config, runtime=self._runtime)


def live_master(info: ReplicasInfo, members: tuple[Member, ...]) -> Member | None:
    """Return the member of a set that is its master and alive."""
    addresses = [
        one.broker_address
        for one in info.in_sync_replicas
        if one.broker_id == info.master_broker_id and one.alive
    ]
    return next((member for member in members if member.address in addresses), None)
