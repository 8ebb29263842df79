"""Handlers of requests on the replicas of this broker.

    905   NOTIFY_MIN_BROKER_ID_CHANGE   asks the name servers at once who is registered
    906   EXCHANGE_BROKER_HA_INFO       of a master: where slaves copy its log. With the addresses
                                        of a master that returns, a slave that may act for it ends
                                        to act, and then answers; others ignore that. Of a member
                                        of a set in controller mode: whether it confirms its master
    908   RESET_MASTER_FLUSH_OFFSET     of a slave: stores the position for `haStatus`, and for Java
                                        on the same store. Kourou's slaves do not use it
    1007  GET_BROKER_EPOCH_CACHE        the epochs of the log; 1 outside of controller mode
    1008  NOTIFY_BROKER_ROLE_CHANGED    asks the controller at once who is master

Source: AdminBrokerProcessor.exchangeBrokerHaInfo, resetMasterFlushOffset,
getBrokerEpochCache, notifyBrokerRoleChanged,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kourou.broker.advertised import advertised_address
from kourou.broker.context import BrokerContext
from kourou.broker.replication.controlled_role import MasterClaim
from kourou.errors import RemoteSystemError
from kourou.model.epochs import POSITION_MAX, EpochList
from kourou.protocol.brokers import (
    ExchangeHAInfoRequestHeader,
    ExchangeHAInfoResponseHeader,
    KeptAck,
    KeptAcks,
    ResetMasterFlushOffsetHeader,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.controller.headers import EpochEntry, EpochEntryCache
from kourou.protocol.json_records import encode_record
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import format_address, parse_address


class ReplicaState(NamedTuple):
    """State that the requests read and change.

    Attributes:
        is_slave: whether the broker copies the log of a master.
        ha_port: returns the port at which slaves copy the log; None if there is none.
        epochs: of a broker in controller mode: returns the epochs of its log, and its id.
        meet_master: of a slave that may act for its master: lets it end to act.
        kept_acks: of the same: returns the acks of its master's pops that it has accepted.
        check_members: of a slave without a controller: asks the name servers soon.
        ask_role: of a broker in controller mode: asks the controller soon who is master.
        confirm_master: of a broker in controller mode: answers a master that asks for confirmation.
    """

    is_slave: bool
    ha_port: Callable[[], int | None]
    epochs: Callable[[], tuple[EpochList, int]] | None = None
    meet_master: Callable[[ExchangeHAInfoRequestHeader], Awaitable[None]] | None = None
    kept_acks: Callable[[], Sequence[KeptAck]] = tuple
    check_members: Callable[[], None] | None = None
    ask_role: Callable[[], None] | None = None
    confirm_master: Callable[[MasterClaim], Awaitable[bool]] | None = None


class ReplicaHandlers:
    """Serves the requests."""

    def __init__(self, context: BrokerContext, state: ReplicaState) -> None:
        self._config = context.config
        self._reader, self._writer = context.store.reader, context.store.writer
        self._state = state
        self._later = context.later

    def table(self) -> dict[int, Handler]:
        """Return request code -> handler."""
        return {
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.on_notify_min_broker_id_change,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.on_exchange_broker_ha_info,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.on_reset_master_flush_offset,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.on_get_broker_epoch_cache,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.on_notify_broker_role_changed,
        }

    def on_notify_min_broker_id_change(self, request: Request) -> RemotingCommand:
        """Serve 905: the name servers are asked, since anyone may send this request."""
        if self._state.check_members is not None:
            self._state.check_members()
        return response(request.command)

    def on_exchange_broker_ha_info(self, request: Request) -> RemotingCommand | None:
        """Serve 906."""
        asked = request.command.header(ExchangeHAInfoRequestHeader)
        if asked.kourou_failsafe_epoch is not None:
            self._later.answer(request, lambda: self._confirm(request, asked))
            return None
        meet_master, port = self._state.meet_master, self._state.ha_port()
        if asked.master_ha_address and meet_master is not None:

            async def serve() -> RemotingCommand:
                await meet_master(asked)
                kept = tuple(self._state.kept_acks())
                return response(
                    request.command, body=encode_record(KeptAcks(kept)) if kept else b""
                )

            self._later.answer(request, serve)
            return None
        if asked.master_ha_address or port is None:
            return response(request.command)
        address = advertised_address(self._config, request.connection.local_address)
        header = ExchangeHAInfoResponseHeader(
            master_ha_address=format_address((parse_address(address)[0], port)),
            master_flush_offset=self._reader.synced_position,
            master_address=address,
        )
        return response(request.command, header=header)

    async def _confirm(
        self, request: Request, asked: ExchangeHAInfoRequestHeader
    ) -> RemotingCommand:
        """Answer a master that asks for confirmation; no epoch: it is not confirmed."""
        confirm, epoch = self._state.confirm_master, asked.kourou_failsafe_epoch or 0
        claim = MasterClaim(
            asked.kourou_failsafe_member or "", epoch, asked.kourou_failsafe_ms or 0
        )
        is_confirmed = confirm is not None and await confirm(claim)
        header = ExchangeHAInfoResponseHeader(kourou_failsafe_epoch=epoch if is_confirmed else None)
        return response(request.command, header=header)

    def on_reset_master_flush_offset(self, request: Request) -> RemotingCommand:
        """Serve 908; as in Java, no effect on a master."""
        offset = request.command.header(ResetMasterFlushOffsetHeader).master_flush_offset
        if self._state.is_slave and offset is not None:
            self._writer.set_master_flushed_offset(offset)
        return response(request.command)

    def on_get_broker_epoch_cache(self, request: Request) -> RemotingCommand:
        """Serve 1007."""
        if self._state.epochs is None:
            text = "the broker is not in controller mode (enableControllerMode): it has no epochs"
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, text)
        epochs, broker_id = self._state.epochs()
        entries = list(epochs)
        ends = [entry.start for entry in entries[1:]] + [POSITION_MAX]
        cache = EpochEntryCache(
            self._config.cluster_name,
            self._config.broker_name,
            broker_id,
            tuple(
                EpochEntry(entry.epoch, entry.start, end)
                for entry, end in zip(entries, ends, strict=bool(entries))
            ),
            self._reader.written_position,
        )
        return response(request.command, body=encode_record(cache))

    def on_notify_broker_role_changed(self, request: Request) -> RemotingCommand:
        """Serve 1008: the controller is asked, since anyone may send this request."""
        if self._state.ask_role is not None:
            self._state.ask_role()
        return response(request.command)
