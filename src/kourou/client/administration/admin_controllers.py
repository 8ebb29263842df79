"""AdminClient methods for controllers: broker sets, elections, removal of replicas.

`controllers` names the controllers as brokers do: `host:port`, joined by `;`. A request goes to the
one that leads.

Source: GetSyncStateSetSubCommand.java, ReElectMasterSubCommand.java,
CleanControllerBrokerMetaSubCommand.java, GetBrokerEpochSubCommand.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from kourou.client.administration.admin_calls import AdminCalls, Server
from kourou.errors import KourouError, NoLeaderError, RemoteError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.controller.headers import (
    BrokerReplicasInfo,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    EpochEntryCache,
    GetMetaDataResponseHeader,
    ReplicasInfo,
    encode_broker_names,
)
from kourou.protocol.json_records import decode_record
from kourou.protocol.properties_text import encode_properties_text


class Elected(NamedTuple):
    """Result of an election.

    Attributes:
        broker_id: the new master; None if the set has none now.
        address: where it serves clients; empty without one.
        epoch: epoch of the election.
    """

    broker_id: int | None
    address: str
    epoch: int


class ControllerAdmin(AdminCalls):
    """Describes and changes broker sets whose masters controllers elect."""

    async def controller_leader(self, controllers: str) -> str:
        """Return the address of the controller that leads.

        Raises:
            NoLeaderError: none of them answers, or none leads.
        """
        return (await self._named_leader(controllers)).address

    async def broker_sets(
        self, controllers: str, broker_names: Iterable[str]
    ) -> Mapping[str, ReplicasInfo]:
        """Return master, epochs and in-sync set by broker name; unknown names are left out."""
        body = encode_broker_names(list(broker_names))
        async with self._leading(controllers) as leader:
            code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
            answer = await leader.request_body(code, body=body)
        return decode_record(BrokerReplicasInfo, answer).replicas_info_table

    async def broker_epochs(self, address: str) -> EpochEntryCache:
        """Return the epochs and the end of the log of the broker at `host:port`.

        Raises:
            RemoteSystemError: its role is not decided by controllers.
        """
        body = await self._server(address).request_body(RequestCode.GET_BROKER_EPOCH_CACHE)
        return decode_record(EpochEntryCache, body)

    async def elect_master(
        self,
        controllers: str,
        *,
        cluster: str,
        broker_name: str,
        broker_id: int,
        unclean: bool = False,
    ) -> Elected:
        """Make a member of the in-sync set, which must be alive, the master of its set.

        Args:
            controllers: the controllers.
            cluster: the cluster of the set; empty: not compared.
            broker_name: the set.
            broker_id: the replica.
            unclean: elect a replica that is not in sync, because no member of the in-sync set is
                alive: acknowledged messages that it lacks are lost. Only controllers of Kourou.

        Raises:
            RemoteError: the controller refuses; code CONTROLLER_MASTER_STILL_EXIST: it is the
                master already.
        """
        header = ElectMasterRequestHeader(
            cluster, broker_name, broker_id, designate_elect=True, unclean=unclean or None
        )
        async with self._leading(controllers) as leader:
            answer = await leader.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        found = answer.header(ElectMasterResponseHeader)
        return Elected(found.master_broker_id, found.master_address or "", found.master_epoch or 0)

    async def remove_replicas(
        self,
        controllers: str,
        *,
        cluster: str,
        broker_name: str,
        broker_ids: Iterable[int],
        are_alive: bool = False,
    ) -> None:
        """Remove replicas from the controllers' state; their ids are not assigned again.

        Args:
            controllers: the controllers.
            cluster: the cluster of the set.
            broker_name: the set.
            broker_ids: the replicas; at least one.
            are_alive: remove also replicas that send heartbeats.

        Raises:
            RemoteError: a replica is alive, or no replica in sync would be left.
        """
        ids = ";".join(map(str, sorted(broker_ids)))
        assert ids, "no id means the whole set"
        header = CleanControllerBrokerDataRequestHeader(cluster, broker_name, ids, are_alive)
        async with self._leading(controllers) as leader:
            await leader.request_body(RequestCode.CLEAN_BROKER_DATA, header)

    async def update_controller_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change options of the running controller at `host:port`, until it stops.

        Raises:
            NoPermissionError: an option is unknown, or cannot change while the controller runs.
        """
        body = encode_properties_text(values)
        await self._server(address).request_body(RequestCode.UPDATE_CONTROLLER_CONFIG, body=body)

    @asynccontextmanager
    async def _leading(self, controllers: str) -> AsyncIterator[Server]:
        """Yield the leading controller, for a request to it.

        Raises:
            NoLeaderError: none of them answers, or none leads; also if the one that is named
                answers that it does not lead, as without etcd.
        """
        leader = await self._named_leader(controllers)
        try:
            yield leader
        except RemoteError as error:
            if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                raise
            raise NoLeaderError(
                f"no controller leads: {leader.address} was the last one to lead, and does not "
                "now, as while controllers do not reach etcd or choose another one"
            ) from error

    async def _named_leader(self, controllers: str) -> Server:
        """Return the leading controller, as the first one that knows it answers."""
        asked = [asyncio.ensure_future(self._leader_by(at)) for at in controllers.split(";") if at]
        reasons = []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    return await answer
                except KourouError as error:
                    reasons.append(str(error))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise NoLeaderError(f"no controller leads: {'; '.join(reasons) or 'none is named'}")

    async def _leader_by(self, address: str) -> Server:
        """Return the leading controller as one of them knows it.

        Raises:
            NoLeaderError: it knows none.
        """
        answer = await self._server(address).request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        found = answer.header(GetMetaDataResponseHeader)
        if found.is_leader:
            return self._server(address)
        if not found.controller_leader_address:
            raise NoLeaderError(f"{address} knows no leader")
        return self._server(found.controller_leader_address)
