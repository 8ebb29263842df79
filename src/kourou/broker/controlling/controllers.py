"""Requests to the controllers: one of them leads, and only its answers count.

Each request goes to the controller that is known to lead. If it cannot be reached or no longer
leads, the others are asked who does, and the request is repeated once.

Source: BrokerOuterAPI.java, ReplicasManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kourou.broker.replication.controlled_role import InSyncSet, MasterClaim
from kourou.errors import (
    KourouError,
    NoLeaderError,
    RemoteError,
    RemoteSystemError,
    TransportError,
)
from kourou.protocol.brokers import ExchangeHAInfoRequestHeader, ExchangeHAInfoResponseHeader
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.controller.headers import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerReplicasInfo,
    ElectMasterRequestHeader,
    ElectMasterResponse,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
    ReplicasInfo,
    SyncStateSet,
    encode_broker_names,
)
from kourou.protocol.json_records import decode_record, encode_record
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    BrokerHeartbeatResponseHeader,
    RegisterBrokerResponseHeader,
)
from kourou.remoting.pool import ConnectionPool

_UNKNOWN_CODES: Final = frozenset(
    {
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
    }
)
_TIMEOUT_S: Final = 3.0
_HEARTBEAT_TIMEOUT_S: Final = 1.0


class Identity(NamedTuple):
    """A broker as its controller knows it.

    Attributes:
        broker_id: at least 1, and different for each replica of the broker name.
    """

    cluster: str
    broker_name: str
    broker_id: int


class ReplicaSet(NamedTuple):
    """The replicas of a broker name, as a controller has decided.

    Attributes:
        master_id: None if there is no master, or it is not alive.
        master_address: where the master serves clients; empty without one.
        master_epoch: 0 before the first election.
        in_sync: the in-sync set.
        unclean_epoch: the last epoch whose master was elected without being in sync; 0 if there was
            none, or it is not known.
    """

    master_id: int | None
    master_address: str
    master_epoch: int
    in_sync: InSyncSet
    unclean_epoch: int = 0


class Controllers:
    """The controllers of one broker.

    All requests raise TransportError if no leading controller answers, and RemoteError with the
    controller's code if it refuses.
    """

    def __init__(
        self, addresses: tuple[str, ...], pool: ConnectionPool, now_ms: Callable[[], int]
    ) -> None:
        """Ask the controllers at these addresses.

        Args:
            addresses: of all controllers; at least one.
            pool: connects to them; closed by its owner.
            now_ms: returns the time, which requests carry.
        """
        self._addresses = addresses
        self._pool = pool
        self._now_ms = now_ms
        self.leader = ""
        """Address of the controller that leads, as far as known; empty if not."""
        self.is_registered = False
        """Whether the leading controller knows this broker, as far as known."""
        self.on_answered: Callable[[], None] = lambda: None
        """Called when a leading controller has answered."""

    async def next_broker_id(self, cluster: str, broker_name: str) -> int:
        """Return the id for which a new replica may apply."""
        header = GetNextBrokerIdRequestHeader(cluster, broker_name)
        answer = await self._ask(lambda: request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header))
        return answer.header(GetNextBrokerIdResponseHeader).next_broker_id or 1

    async def apply_broker_id(self, identity: Identity, check_code: str) -> None:
        """Apply for an id; repeated with the same check code it succeeds again."""
        cluster, name, broker_id = identity
        header = ApplyBrokerIdRequestHeader(cluster, name, broker_id, check_code)
        await self._ask(lambda: request(RequestCode.CONTROLLER_APPLY_BROKER_ID, header))

    async def register(self, identity: Identity, address: str) -> ReplicaSet:
        """Tell where this broker serves clients, and return its replicas."""

        def register() -> RemotingCommand:
            header = RegisterBrokerToControllerRequestHeader(*identity, address, self._now_ms())
            return request(RequestCode.CONTROLLER_REGISTER_BROKER, header)

        answer = await self._ask(register)
        found = answer.header(RegisterBrokerToControllerResponseHeader)
        return _replicas(
            found.master_broker_id, found.master_address, found.master_epoch, answer.body
        )

    async def own_set(self, identity: Identity, address: str) -> ReplicaSet:
        """Return the replicas of this broker; register it before, as `register`, once."""
        try:
            if self.is_registered:
                return await self.replicas(identity.broker_name)
            found = await self.register(identity, address)
        except RemoteError as error:
            if error.code in _UNKNOWN_CODES:
                self.is_registered = False
            raise
        self.is_registered = True
        return found

    async def replicas(self, broker_name: str) -> ReplicaSet:
        """Return the replicas of a broker name."""
        header = GetReplicaInfoRequestHeader(broker_name)
        answer = await self._ask(lambda: request(RequestCode.CONTROLLER_GET_REPLICA_INFO, header))
        found = answer.header(GetReplicaInfoResponseHeader)
        replicas = _replicas(
            found.master_broker_id, found.master_address, found.master_epoch, answer.body
        )
        return replicas._replace(unclean_epoch=found.unclean_epoch or 0)

    async def states(self, broker_name: str) -> ReplicasInfo:
        """Return the replicas of a broker name, with what the controller has heard of each."""
        body = encode_broker_names([broker_name])
        answer = await self._ask(
            lambda: request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        )
        found = decode_record(BrokerReplicasInfo, answer.body).replicas_info_table
        return found.get(broker_name, ReplicasInfo())

    async def elect(self, identity: Identity, *, is_designated: bool = False) -> ReplicaSet:
        """Ask for the election of a master.

        Args:
            identity: of the broker that asks; with `is_designated`, of the one to elect, although
                the master is alive.
            is_designated: as that says.

        Raises:
            RemoteError: CONTROLLER_MASTER_STILL_EXIST, CONTROLLER_ELECT_MASTER_FAILED and others.
        """

        def elect() -> RemotingCommand:
            header = ElectMasterRequestHeader(*identity, is_designated, self._now_ms())
            return request(RequestCode.CONTROLLER_ELECT_MASTER, header)

        answer = await self._ask(elect)
        found = answer.header(ElectMasterResponseHeader)
        members = decode_record(ElectMasterResponse, answer.body).sync_state_set
        in_sync = InSyncSet(frozenset(members or ()), found.sync_state_set_epoch or 0)
        return _replica_set(
            found.master_broker_id, found.master_address, found.master_epoch, in_sync
        )

    async def propose(
        self, identity: Identity, master_epoch: int, members: frozenset[int], set_epoch: int
    ) -> InSyncSet:
        """Ask for another in-sync set, and return it when it is decided; not repeated.

        Args:
            identity: of the master.
            master_epoch: its epoch.
            members: the proposed broker ids.
            set_epoch: epoch of the set from which the proposal was made.
        """
        header = AlterSyncStateSetRequestHeader(
            identity.broker_name, identity.broker_id, master_epoch, self._now_ms()
        )
        body = encode_record(SyncStateSet(tuple(sorted(members)), set_epoch))
        command = request(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
        leader = await self._leading()
        try:
            answer = await self._pool.request(leader, command, _TIMEOUT_S)
        except TransportError:
            self._drop(leader)  # or it might be decided after the answers to later questions
            raise
        self._check(answer)
        return _in_sync(answer.body)

    async def heartbeat(
        self, header: BrokerHeartbeatRequestHeader
    ) -> BrokerHeartbeatResponseHeader:
        """Tell the leading controller that this broker is alive; not repeated.

        Returns the master as the controller knows it; Java's controllers do not tell.
        """
        command = request(RequestCode.BROKER_HEARTBEAT, header)
        leader = await self._leading()
        try:
            answer = await self._pool.request(leader, command, _HEARTBEAT_TIMEOUT_S)
        except TransportError:
            self.leader = ""
            raise
        self._check(answer)
        return answer.header(BrokerHeartbeatResponseHeader)

    async def ask_master(self, address: str) -> RegisterBrokerResponseHeader:
        """Return the addresses of a master: the one for requests, and the one for slaves.

        Raises:
            RemoteError: it does not answer as a master yet.
        """
        command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoRequestHeader())
        answer = await self._pool.request(address, command, _TIMEOUT_S)
        raise_for_response(answer)
        found = answer.header(ExchangeHAInfoResponseHeader)
        if not found.master_ha_address:
            text = f"{address} does not serve slaves yet: it is no master, or is becoming one"
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, text)
        return RegisterBrokerResponseHeader(found.master_ha_address, address)

    async def ask_member(self, address: str, claim: MasterClaim, timeout_s: float) -> bool:
        """Return whether a member of the in-sync set confirms this broker as its master."""
        header = ExchangeHAInfoRequestHeader(
            kourou_failsafe_epoch=claim.epoch,
            kourou_failsafe_member=claim.member,
            kourou_failsafe_ms=claim.promise_ms,
        )
        command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, header)
        answer = await self._pool.request(address, command, timeout_s)
        raise_for_response(answer)
        found = answer.header(ExchangeHAInfoResponseHeader)
        return found.kourou_failsafe_epoch == claim.epoch

    async def _ask(self, command: Callable[[], RemotingCommand]) -> RemotingCommand:
        """Send a request to the leading controller; once more if that does not lead any more."""
        try:
            answer = await self._pool.request(await self._leading(), command(), _TIMEOUT_S)
            self._check(answer)
        except TransportError:
            self.leader = ""
        except RemoteError:
            if self.leader:
                raise
        else:
            return answer
        answer = await self._pool.request(await self._leading(), command(), _TIMEOUT_S)
        self._check(answer)
        return answer

    def _drop(self, address: str) -> None:
        """Close the connection at once; what the controller has not read of it is lost."""
        self.leader = ""
        connection = self._pool.existing(address)
        if connection is not None:
            connection.abort("a proposal was not answered")

    def _check(self, answer: RemotingCommand) -> None:
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.leader = ""
        else:
            self.on_answered()
        raise_for_response(answer)

    async def _leading(self) -> str:
        """Return the address of the controller that leads; ask all if it is not known.

        Raises:
            NoLeaderError: none of them leads, or knows who does.
        """
        if self.leader:
            return self.leader
        reasons = []
        for address in self._addresses:
            command = RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
            try:
                answer = await self._pool.request(address, command, _HEARTBEAT_TIMEOUT_S)
                raise_for_response(answer)
                found = answer.header(GetMetaDataResponseHeader)
            except KourouError as error:
                reasons.append(str(error))
                continue
            if found.is_leader or found.controller_leader_address:
                self.leader = address if found.is_leader else found.controller_leader_address or ""
                return self.leader
            reasons.append(f"{address} knows no leader")
        raise NoLeaderError(f"no controller leads: {'; '.join(reasons)}")


def _replicas(
    master_id: int | None, address: str | None, epoch: int | None, body: bytes
) -> ReplicaSet:
    return _replica_set(master_id, address, epoch, _in_sync(body))


def _replica_set(
    master_id: int | None, address: str | None, epoch: int | None, in_sync: InSyncSet
) -> ReplicaSet:
    is_known = master_id is not None and master_id >= 0 and bool(address)
    return ReplicaSet(master_id if is_known else None, address or "", epoch or 0, in_sync)


def _in_sync(body: bytes) -> InSyncSet:
    if not body:
        return InSyncSet(frozenset(), 0)
    found = decode_record(SyncStateSet, body)
    return InSyncSet(frozenset(found.sync_state_set or ()), found.sync_state_set_epoch)
