"""What the broker asks of consumers for an administrator: requests 307, 309 and 223; and 220.

A request waits for a client's answer for a bounded time, as a task that waits and nothing else, so
that a client that does not answer costs others nothing. It goes out on the connection that the
client itself made.

    307   how a consumer runs         passed on as it is; the answer is the consumer's
    309   let it consume a message    passed on with the message
    223   offsets of its queues       asked as 221 of each member of the group
    220   go on at these offsets      one-way, to each member of the group (`admin_offsets.py`)

Source: AdminBrokerProcessor.java, Broker2Client.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kourou.broker.clients import Clients, ConsumerGroup, Member, Peer
from kourou.broker.consuming.retry_topics import TopicTable
from kourou.broker.groups import Groups
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
from kourou.protocol.bodies_offsets import (
    ConsumerStatus,
    decode_consumer_status,
    encode_consumer_status,
    encode_reset_offsets,
    encode_reset_offsets_for_c,
)
from kourou.protocol.codes import LanguageCode, RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.headers_admin_clients import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from kourou.protocol.headers_admin_offsets import (
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from kourou.remoting.connection import Connection, Request
from kourou.remoting.later import LaterReplies
from kourou.remoting.runtime import Offload
from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

RELAY_TIMEOUT_S: Final = 10.0
"""How long 307 and 309 wait for the client."""
STATUS_TIMEOUT_S: Final = 5.0
"""How long 223 waits for the clients, which are all asked at once."""
CLIENTS_ASKED_MAX: Final = 1_000
"""Members of a group that one request may have asked; more are refused, not left out."""
RELAY_VERSION_MIN: Final = 62  # 3.1.8-SNAPSHOT
STATUS_VERSION_MIN: Final = 28  # 3.0.7-SNAPSHOT

CallClient = Callable[[Peer, RemotingCommand, float], Awaitable[RemotingCommand]]
"""Sends a request to a client and returns its answer; see `Connection.request`."""


async def call_connection(
    peer: Peer, command: RemotingCommand, timeout_s: float
) -> RemotingCommand:
    """Send a request on the connection that a client made, and return its answer."""
    assert isinstance(peer, Connection), "clients come by connections"
    return await peer.request(command, timeout_s)


class ClientCalls:
    """Serves 307, 309 and 223, and sends 220."""

    def __init__(
        self,
        *,
        broker_name: str,
        topics: TopicTable,
        groups: Groups,
        clients: Clients,
        store: MessageStore,
        call_client: CallClient,
        offload: Offload,
        later: LaterReplies,
    ) -> None:
        """Ask `clients`.

        Args:
            broker_name: told to the client with a message to consume.
            topics: their flags are told with it,
            groups: and the group's.
            clients: who is connected.
            store: where that message is read.
            call_client: the way to a client.
            offload: takes the read off the loop.
            later: answers when the client has.
        """
        self._broker_name = broker_name
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._store = store
        self._call_client = call_client
        self._offload = offload
        self._later = later

    def on_get_consumer_running_info(self, request: Request) -> None:
        """Serve 307: the consumer's own answer, whatever its code."""
        command = request.command
        header = command.header(GetConsumerRunningInfoRequestHeader)
        member = self._member(header.consumer_group, header.client_id)

        async def serve() -> RemotingCommand:
            fields = dict(command.ext_fields)
            return await self._relay(command, fields, b"", header.consumer_group, member)

        self._later.answer(request, serve)

    def on_consume_message_directly(self, request: Request) -> None:
        """Serve 309: the consumer's listener is handed the message once, and nothing is committed.

        Raises:
            InvalidParameterError: the message id is none.
        """
        command = request.command
        header = command.header(ConsumeMessageDirectlyResultRequestHeader)
        member = self._member(header.consumer_group, header.client_id or "")
        try:
            _, offset = decode_offset_msg_id(header.msg_id or "")
        except InvalidMessageError as error:
            raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None

        async def serve() -> RemotingCommand:
            record = await self._offload(self._store.read_record, offset)
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
        """Serve 223: the offsets at which each member of the group, or one of them, goes on.

        Members that do not answer in time are left out.
        """
        header = request.command.header(GetConsumerStatusRequestHeader)
        live = self._live(header.group)
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
            told = dict(zip(members, await asyncio.gather(*asked), strict=True))
            status = ConsumerStatus(
                clients={client: table for client, table in told.items() if table is not None}
            )
            return response(request.command, body=encode_consumer_status(status))

        self._later.answer(request, serve)

    def push_reset(
        self, topic: str, group: str, at_ms: int, offsets: Mapping[MessageQueue, int]
    ) -> bool:
        """Send 220 to all members of the group; return False if it has none.

        Whether and when they do it is not told. A C++ client gets the form of the body that it
        reads.

        Raises:
            RemoteSystemError: a member is too old to know the request; none was told.
        """
        live = self._live(group)
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

    def _live(self, group: str) -> ConsumerGroup | None:
        """Return the group if it is connected.

        Raises:
            RemoteSystemError: it has more members than one request may ask.
        """
        live = self._clients.consumer_group(group)
        if live is not None and len(live.members) > CLIENTS_ASKED_MAX:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"consumer group {group} has {len(live.members)} members; at most "
                f"{CLIENTS_ASKED_MAX} are asked at once",
            )
        return live

    def _member(self, group: str, client_id: str) -> Member:
        """Return the consumer that a request is for.

        Raises:
            RemoteSystemError: it is not connected, or too old to know the request.
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
        """Pass a request on, and return the client's answer as the answer to `asked`."""
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
        told = response(asked, answer.code, answer.remark, body=answer.body)
        told.ext_fields = answer.ext_fields
        return told

    async def _status_of(
        self, member: Member, header: GetConsumerStatusRequestHeader
    ) -> Mapping[MessageQueue, int] | None:
        """Return where the member goes on in its queues; None if it does not tell."""
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
    """Refuse to ask a group of which a member would not understand.

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
