"""Handlers of the requests that brokers and tools send to a controller.

     904  BROKER_HEARTBEAT                 2007, 2010, 2005, 2004: not confirmed
    1001  CONTROLLER_ALTER_SYNC_STATE_SET  2000 to 2003, 2006, 2013
    1002  CONTROLLER_ELECT_MASTER          2004, 2010, 2011, 2012
    1003  CONTROLLER_REGISTER_BROKER       2010
    1004  CONTROLLER_GET_REPLICA_INFO      2008
    1005  CONTROLLER_GET_METADATA_INFO     answered by every controller
    1006  CONTROLLER_GET_SYNC_STATE_DATA
    1009  UPDATE_CONTROLLER_CONFIG         16: not live
    1010  GET_CONTROLLER_CONFIG
    1011  CLEAN_BROKER_DATA                2009
    1012  CONTROLLER_GET_NEXT_BROKER_ID
    1013  CONTROLLER_APPLY_BROKER_ID       2014

A controller that does not lead answers 2007, except to 1005, 1009 and 1010. All answers about a
broker set come from the leading controller, reads too (Java answers these from memory): a
controller that was cut off must not confirm a master that was cut off with it.

Source: ControllerRequestProcessor.java, DLedgerController.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from kourou.controller import replica_sets
from kourou.controller.config import LiveConfig
from kourou.controller.elections import Elections
from kourou.controller.replica_sets import Decision
from kourou.controller.state_store import Member, StateStore
from kourou.errors import InvalidParameterError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.controller.headers import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerReplicasInfo,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetReplicaInfoRequestHeader,
    RegisterBrokerToControllerRequestHeader,
    SyncStateSet,
    decode_broker_names,
)
from kourou.protocol.json_records import decode_record, encode_record
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.topic_table import BrokerHeartbeatRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.dispatch import Handler

Serve = Callable[[Request], Coroutine[Any, Any, Decision]]


class ControllerHandlers:
    """Handlers of a controller.

    Args:
        elections: decides.
        store: knows the leading controller and the others.
        config: the current options.
        later: sends the answers that wait for the store.
        member: returns this controller, once it listens.
    """

    def __init__(
        self,
        elections: Elections,
        store: StateStore,
        config: LiveConfig,
        later: DeferredReplies,
        member: Callable[[], Member],
    ) -> None:
        self._elections = elections
        self._store = store
        self._config = config
        self._later = later
        self._member = member

    def table(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        decided: dict[int, Serve] = {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect_master,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register_broker,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._get_replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._get_metadata_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._get_sync_state_data,
            RequestCode.CLEAN_BROKER_DATA: self._clean_broker_data,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._get_next_broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply_broker_id,
        }
        return {
            RequestCode.BROKER_HEARTBEAT: self.on_heartbeat,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self.on_update_config,
            RequestCode.GET_CONTROLLER_CONFIG: self.on_get_config,
            **{code: partial(self._answer_later, serve) for code, serve in decided.items()},
        }

    def on_heartbeat(self, request: Request) -> RemotingCommand:
        """BROKER_HEARTBEAT (904)."""
        header = request.command.header(BrokerHeartbeatRequestHeader)
        decision = self._elections.heartbeat(header, is_oneway=request.is_oneway)
        return _answer(request.command, decision)

    def on_update_config(self, request: Request) -> RemotingCommand:
        """UPDATE_CONTROLLER_CONFIG (1009)."""
        if request.command.body:
            self._config.change(decode_properties_text(request.command.body))
        return response(request.command)

    def on_get_config(self, request: Request) -> RemotingCommand:
        """GET_CONTROLLER_CONFIG (1010)."""
        return response(request.command, body=encode_properties_text(self._config.values()))

    def _answer_later(self, serve: Serve, request: Request) -> None:
        async def answer() -> RemotingCommand:
            return _answer(request.command, await serve(request))

        self._later.answer(request, answer)

    async def _alter_sync_state_set(self, request: Request) -> Decision:
        header = request.command.header(AlterSyncStateSetRequestHeader)
        proposed = decode_record(SyncStateSet, request.command.body)
        return await self._elections.decide(
            _name(header.broker_name),
            None,
            lambda current, alive: replica_sets.alter_sync_state_set(
                current, header, proposed, alive
            ),
            set_epoch=proposed.sync_state_set_epoch,
        )

    async def _elect_master(self, request: Request) -> Decision:
        header = request.command.header(ElectMasterRequestHeader)
        _name(header.broker_name)
        return await self._elections.elect(header)

    async def _register_broker(self, request: Request) -> Decision:
        header = request.command.header(RegisterBrokerToControllerRequestHeader)
        return await self._elections.decide(
            _name(header.broker_name),
            header.cluster_name,
            lambda current, alive: replica_sets.register_broker(current, header, alive),
        )

    async def _get_replica_info(self, request: Request) -> Decision:
        header = request.command.header(GetReplicaInfoRequestHeader)
        return await self._elections.decide(
            _name(header.broker_name),
            None,
            lambda current, _: replica_sets.get_replica_info(current),
        )

    async def _get_metadata_info(self, request: Request) -> Decision:  # noqa: ARG002
        leader = self._member() if self._elections.leads else await self._store.leader()
        members = await self._store.members()
        header = GetMetaDataResponseHeader(
            self._config.current.controller_group,
            None if leader is None else leader.member_id,
            None if leader is None else leader.address,
            self._elections.leads,
            "".join(f"{member.member_id}:{member.address};" for member in members),
        )
        return Decision(header=header)

    async def _get_sync_state_data(self, request: Request) -> Decision:
        names = decode_broker_names(request.command.body) if request.command.body else []
        table = await self._elections.replicas_info(names)
        return Decision(body=encode_record(BrokerReplicasInfo(table)))

    async def _clean_broker_data(self, request: Request) -> Decision:
        header = request.command.header(CleanControllerBrokerDataRequestHeader)
        return await self._elections.decide(
            _name(header.broker_name),
            header.cluster_name,
            lambda current, alive: replica_sets.clean_broker_data(current, header, alive),
        )

    async def _get_next_broker_id(self, request: Request) -> Decision:
        header = request.command.header(GetNextBrokerIdRequestHeader)
        return await self._elections.decide(
            _name(header.broker_name),
            header.cluster_name,
            lambda current, _: replica_sets.get_next_broker_id(current, header),
        )

    async def _apply_broker_id(self, request: Request) -> Decision:
        header = request.command.header(ApplyBrokerIdRequestHeader)
        return await self._elections.decide(
            _name(header.broker_name),
            header.cluster_name,
            lambda current, _: replica_sets.apply_broker_id(current, header),
        )


def _name(broker_name: str | None) -> str:
    """Return the broker name of a request.

    Raises:
        InvalidParameterError: the request has none.
    """
    if not broker_name:
        raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, "brokerName is missing")
    return broker_name


def _answer(command: RemotingCommand, decision: Decision) -> RemotingCommand:
    return response(command, decision.code, decision.remark, decision.header, decision.body)
