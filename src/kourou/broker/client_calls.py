"""Requests that the broker sends to consumers for an administrator: 307, 309, 223 and 220.

A task of its own waits for the client's answer, for a bounded time, so that a client that does not
answer delays no other request. The request is sent on the connection that the client opened.

    code  purpose                      what the broker sends
    307   running info of a consumer   the same request; returns the consumer's answer
    309   consume one message          the same request with the message as its body
    223   offsets of a group           221 to each member of the group
    220   reset offsets                one-way, to each member of the group (`admin_offsets.py`)

Source: AdminBrokerProcessor.java, Broker2Client.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from kourou.broker.clients import ConsumerGroup, Member, Peer
from kourou.broker.context import BrokerContext
from kourou.broker.reserved import check_delivered, topic_of
from kourou.errors import (
    ConsumeTimeoutError,
    InvalidMessageError,
    InvalidParameterError,
    ProtocolError,
    RemoteSystemError,
    RequestTimeoutError,
    TransportError,
)
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import LanguageCode, RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.offsets import (
    ConsumerStatus,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    decode_consumer_status,
    encode_consumer_status,
    encode_reset_offsets,
    encode_reset_offsets_for_c,
)
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from kourou.remoting.connection import Connection, Request

log = logging.getLogger(__name__)

RELAY_TIMEOUT_S: Final = 10.0
"""Time-out of 307 and 309."""
STATUS_TIMEOUT_S: Final = 5.0
"""Time-out of 223; all clients are asked in parallel."""
CLIENTS_ASKED_MAX: Final = 1_000
"""Most members of a group that one request may address. A request for a larger group is refused."""
RELAY_VERSION_MIN: Final = 62  # 3.1.8-SNAPSHOT
STATUS_VERSION_MIN: Final = 28  # 3.0.7-SNAPSHOT


async def call_connection(
    peer: Peer, command: RemotingCommand, timeout_s: float
) -> RemotingCommand:
    """Send a request on the connection that a client opened, and return its answer."""
    assert isinstance(peer, Connection), "clients come by connections"
    return await peer.request(command, timeout_s)


class ClientCalls:
    """Serves 307, 309 and 223, and sends 220."""

    def __init__(self, context: BrokerContext) -> None:
        self._broker_name = context.config.broker_name
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._reader = context.store.reader
        self._call_client = context.call_client
        self._offload = context.offload
        self._later = context.later

    def on_get_consumer_running_info(self, request: Request) -> None:
        """Serve 307: return the consumer's answer, whatever its code."""
        command = request.command
        header = command.header(GetConsumerRunningInfoRequestHeader)
        member = self._member(header.consumer_group, header.client_id)

        async def serve() -> RemotingCommand:
            fields = dict(command.ext_fields)
            return await self._relay(command, fields, b"", header.consumer_group, member)

        self._later.answer(request, serve)

    def on_consume_message_directly(self, request: Request) -> None:
        """Serve 309: have the consumer's listener process a message once; commit no offset.

        Raises:
            InvalidParameterError: the message id does not parse.
        """
        command = request.command
        header = command.header(ConsumeMessageDirectlyResultRequestHeader)
        member = self._member(header.consumer_group, header.client_id or "")
        try:
            _, offset = decode_offset_msg_id(header.msg_id or "")
        except InvalidMessageError as error:
            raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None

        async def serve() -> RemotingCommand:
            record = await self._offload(self._reader.read_record, offset)
            if record is None:
                raise RemoteSystemError(
                    ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
                )
            check_delivered(topic_of(record), offset)
            fields = command.ext_fields | {"brokerName": self._broker_name}
            topic = self._topics.get(header.topic or "")
            if topic is not None:
                fields["topicSysFlag"] = str(topic.topic_sys_flag)
            group = self._groups.get(header.consumer_group)
            if group is not None:
                fields["groupSysFlag"] = str(group.group_sys_flag)
            return await self._relay(command, fields, record, header.consumer_group, member)

        self._later.answer(request, serve)

    def on_invoke_broker_to_get_consumer_status(self, request: Request) -> None:
        """Serve 223: return the current offsets of one member of the group, or of all members.

        Members that do not answer in time are left out.
        """
        header = request.command.header(GetConsumerStatusRequestHeader)
        live = self._connected_group(header.group)
        if live is None:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        _check_versions(live)
        wanted = (header.client_addr or "").strip()
        members = {
            member.client_id: member
            for member in live.members.values()
            if not wanted or member.client_id == wanted
        }

        async def serve() -> RemotingCommand:
            asked = [self._status_of(member, header) for member in members.values()]
            reported = dict(zip(members, await asyncio.gather(*asked), strict=True))
            status = ConsumerStatus(
                clients={client: table for client, table in reported.items() if table is not None}
            )
            return response(request.command, body=encode_consumer_status(status))

        self._later.answer(request, serve)

    def push_reset(
        self, topic: str, group: str, at_ms: int, offsets: Mapping[MessageQueue, int]
    ) -> bool:
        """Send 220 to all members of the group; return False if it has none.

        The request is one-way: members do not confirm it. A C++ client gets the body in the form
        that it can decode.

        Raises:
            RemoteSystemError: a member's version does not support the request, or the group has
                too many members. Nothing was sent.
        """
        live = self._connected_group(group)
        if live is None:
            return False
        _check_versions(live)
        header = ResetOffsetRequestHeader(topic, group, at_ms, is_force=False)
        for member in list(live.members.values()):
            is_c = member.language == LanguageCode.CPP
            body = (encode_reset_offsets_for_c if is_c else encode_reset_offsets)(offsets)
            member.peer.send(
                request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body, oneway=True)
            )
        return True

    def _connected_group(self, group: str) -> ConsumerGroup | None:
        """Return the group; None if it has no connected member.

        Raises:
            RemoteSystemError: it has more than `CLIENTS_ASKED_MAX` members.
        """
        live = self._clients.consumer_group(group)
        if live is not None and len(live.members) > CLIENTS_ASKED_MAX:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"consumer group {group} has {len(live.members)} members; one request can address "
                f"at most {CLIENTS_ASKED_MAX}",
            )
        return live

    def _member(self, group: str, client_id: str) -> Member:
        """Return the consumer that a request addresses.

        Raises:
            RemoteSystemError: it is not connected, or its version does not support the request.
        """
        member = self._clients.member(group, client_id)
        if member is None:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        if member.version < RELAY_VERSION_MIN:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{member.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return member

    async def _relay(
        self, asked: RemotingCommand, fields: dict[str, str], body: bytes, group: str, to: Member
    ) -> RemotingCommand:
        """Forward a request to a client, and return its answer as the answer to `asked`.

        Raises:
            ConsumeTimeoutError: the client did not answer within `RELAY_TIMEOUT_S`.
            RemoteSystemError: the connection failed, or the client broke the protocol.
        """
        passed_on = request(asked.code, body=body)
        passed_on.ext_fields = fields
        try:
            answer = await self._call_client(to.peer, passed_on, RELAY_TIMEOUT_S)
        except RequestTimeoutError as error:
            raise ConsumeTimeoutError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{to.client_id}> Timeout: {error}",
            ) from error
        except (TransportError, ProtocolError) as error:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{to.client_id}> Exception: {error}",
            ) from error
        reported = response(asked, answer.code, answer.remark, body=answer.body)
        reported.ext_fields = answer.ext_fields
        return reported

    async def _status_of(
        self, member: Member, header: GetConsumerStatusRequestHeader
    ) -> Mapping[MessageQueue, int] | None:
        """Return the member's offset in each of its queues; None if it gives no usable answer."""
        asked = request(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatusRequestHeader(header.topic, header.group),
        )
        try:
            answer = await self._call_client(member.peer, asked, STATUS_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return decode_consumer_status(answer.body).offsets
        except (TransportError, ProtocolError) as error:
            log.warning("consumer_status.failed client=%s reason=%s", member.client_id, error)
            return None


def _check_versions(live: ConsumerGroup) -> None:
    """Check that all members support 220 and 221.

    Raises:
        RemoteSystemError: a member is older than 3.0.7.
    """
    for member in live.members.values():
        if member.version < STATUS_VERSION_MIN:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={member.version}, "
                f"client={member.client_id}",
            )
