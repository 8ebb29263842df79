"""A client of the proxy's remoting port, and its connections to brokers.

The client is a member of its groups at the brokers themselves: its heartbeats are forwarded on
connections of its own, and the requests of brokers to it come back on them. So each broker knows
all members of a group, whichever proxies they use, and whether they use one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final

from kourou.errors import RemoteError, TransportError
from kourou.protocol.clients import HeartbeatData, NotifyConsumerIdsChangedRequestHeader
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request, response
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.member_messages import LocalMember
from kourou.remoting.connection import Connection, Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.network import format_address

log = logging.getLogger(__name__)

BROKER_NAME: Final = "bname"
_TRANSACTION_ID: Final = "transactionId"
_TRANSACTIONS_MAX: Final = 10_000
ASK_S: Final = 2.0
"""Time for the answer of one of several brokers: less than the 3 s that clients wait."""
_BY_SLAVES: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Codes with which a master that has been replaced refuses what only masters do."""
_BROKER_REQUESTS: Final = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
)
"""Requests of brokers that are passed on to the client."""


class RemotingSession:
    """One connection of a client.

    Attributes:
        addresses: brokers at which the client is registered, or to which it has sent requests,
            and their names.
        members: the client in each of its consumer groups.
    """

    def __init__(self, connection: Connection, cluster: Cluster) -> None:
        self._connection = connection
        self._cluster = cluster
        self._pool = cluster.create_pool(
            connection.remote_address, dict.fromkeys(_BROKER_REQUESTS, self._on_broker_request)
        )
        self._later = DeferredReplies()
        self._heartbeat: RemotingCommand | None = None
        self._brokers_of_transactions: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._silent: set[str] = set()  # brokers that did not answer the last time
        self.addresses: dict[str, str] = {}
        self.members: dict[str, LocalMember] = {}

    async def forward(
        self, broker_name: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand | None:
        """Send a request of the client to a broker; return the response, None for a oneway one.

        Raises:
            TransportError: the broker did not answer, or is unknown.
        """
        # Each broker has a topic of its own name.
        address = await self._cluster.address(broker_name, broker_name)
        await self._introduce(address, broker_name)
        try:
            if command.is_oneway:
                await self._pool.oneway(address, copied(command), timeout_s)
                return None
            answer = await self._pool.request(address, copied(command), timeout_s)
        except TransportError as error:
            self._cluster.on_failure(broker_name, broker_name, error)
            raise
        if answer.code in _BY_SLAVES:
            try:
                raise_for_response(answer)
            except RemoteError as error:
                self._cluster.on_failure(broker_name, broker_name, error)
        transaction_id = answer.ext_fields.get(_TRANSACTION_ID)
        if transaction_id:
            self._remember(transaction_id, broker_name)
        return relayed(command, answer)

    async def register(self, command: RemotingCommand, heartbeat: HeartbeatData) -> RemotingCommand:
        """Forward a heartbeat to the brokers of its topics, and to those the client uses already.

        A broker that does not answer gets the next heartbeat, whose answer is not waited for.

        Returns:
            The response for the client: the first refusal, or success.
        """
        self._heartbeat = command
        for consumer in heartbeat.consumers:
            self.members[consumer.group] = LocalMember(
                heartbeat.client_id,
                command.language,
                command.version,
                consumer,
                format_address(self._connection.remote_address),
                format_address(self._connection.local_address),
            )
        topics = [one.topic for consumer in heartbeat.consumers for one in consumer.subscriptions]
        self.addresses.update(await self._masters(topics))
        for address in self._silent & self.addresses.keys():
            self._start(self._ask_one(command, address))
        answers = await self._ask_all(command, self.addresses.keys() - self._silent)
        refusal = next((one for one in answers if one.code != ResponseCode.SUCCESS), None)
        return response(command, remark="") if refusal is None else relayed(command, refusal)

    async def ask(
        self, command: RemotingCommand, addresses: Collection[str]
    ) -> list[RemotingCommand]:
        """Send a request to several brokers; return the responses of those that answer.

        Those that did not answer the last time are asked only if there are no others.
        """
        heard = [address for address in addresses if address not in self._silent]
        return await self._ask_all(command, heard or addresses)

    async def _ask_all(
        self, command: RemotingCommand, addresses: Iterable[str]
    ) -> list[RemotingCommand]:
        found = await asyncio.gather(*(self._ask_one(command, address) for address in addresses))
        return [answer for answer in found if answer is not None]

    def broker_of(self, transaction_id: str | None) -> str | None:
        """Return the name of the broker of a half message that the client sent here."""
        return self._brokers_of_transactions.get(transaction_id or "")

    def notify(self, group: str) -> None:
        """Tell the client that the members of a group have changed, if it is one of them."""
        if group in self.members:
            header = NotifyConsumerIdsChangedRequestHeader(group)
            code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            self._start(self._tell(request(code, header, oneway=True)))

    async def close(self) -> None:
        """Close the connections to brokers, which unregister the client."""
        for task in self._tasks:
            task.cancel()
        self._later.abandon()
        await self._pool.close()

    async def _ask_one(self, command: RemotingCommand, address: str) -> RemotingCommand | None:
        try:
            answer = await self._pool.request(address, copied(command), ASK_S)
        except TransportError as error:
            self._silent.add(address)
            log.info("remoting_client.broker_silent broker=%s reason=%s", address, error)
            return None
        self._silent.discard(address)
        return answer

    async def _introduce(self, address: str, broker_name: str) -> None:
        """Register the client at a broker to which it sends its first request."""
        if self.addresses.get(address) == broker_name:
            return
        self.addresses[address] = broker_name
        if self._heartbeat is not None:
            await self._ask_one(self._heartbeat, address)

    async def _masters(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the masters of topics; those that do not exist have none."""
        found: dict[str, str] = {}
        for topic in topics:
            try:
                route = await self._cluster.cached_route(topic)
            except (TransportError, RemoteError) as error:
                log.debug("remoting_client.no_route topic=%s reason=%s", topic, error)
                continue
            for queues in route.queue_datas:
                address = route.master_address(queues.broker_name)
                if address is not None:
                    found[address] = queues.broker_name
        return found

    def _remember(self, transaction_id: str, broker_name: str) -> None:
        known = self._brokers_of_transactions
        known[transaction_id] = broker_name
        if len(known) > _TRANSACTIONS_MAX:
            del known[next(iter(known))]

    def _on_broker_request(self, asked: Request) -> None:
        """Pass a request of a broker on to the client."""
        command = copied(asked.command)
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            broker_name = self.addresses.get(format_address(asked.connection.remote_address))
            if broker_name is not None:
                command.ext_fields.setdefault(BROKER_NAME, broker_name)
                if transaction_id := command.ext_fields.get(_TRANSACTION_ID):
                    self._remember(transaction_id, broker_name)
        if command.is_oneway:
            self._start(self._tell(command))
            return

        async def ask() -> RemotingCommand:
            try:
                answer = await self._connection.request(command, REQUEST_TIMEOUT_S)
            except TransportError as error:
                return response(asked.command, ResponseCode.SYSTEM_ERROR, str(error))
            return relayed(asked.command, answer)

        self._later.answer(asked, ask)

    async def _tell(self, command: RemotingCommand) -> None:
        try:
            await self._connection.oneway(command, REQUEST_TIMEOUT_S)
        except TransportError as error:
            log.info("remoting_client.not_told code=%d reason=%s", command.code, error)

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def copied(command: RemotingCommand) -> RemotingCommand:
    """Return a copy of a request, to be sent on another connection."""
    return replace(command, ext_fields=dict(command.ext_fields))


def relayed(to: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
    """Return the answer of another server as the response to the request `to`."""
    relay = response(to, answer.code, answer.remark, body=answer.body)
    relay.ext_fields = answer.ext_fields
    relay.language, relay.version = answer.language, answer.version
    return relay
