"""Base of the `AdminClient` mixins: finding servers and sending them requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kourou.auth.credentials import AnyCredentials
from kourou.client.config import AdminConfig, resolve_config
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.errors import NoRouteError, TopicNotFoundError
from kourou.model.route import MASTER_ID, TopicRoute
from kourou.model.topic import check_topic
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.routes import (
    ClusterInfo,
    GetRouteInfoRequestHeader,
    decode_cluster_info,
    decode_topic_route,
)
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    """One server: its address, the connections to use, and the timeout of each request."""

    pool: ConnectionPool
    address: str
    timeout_s: float

    async def request_body(
        self, code: int, header: object | None = None, body: bytes = b""
    ) -> bytes:
        """Send a request and return the body of the answer.

        Raises:
            TransportError: no answer arrived.
            RemoteError: the server refused.
        """
        return (await self.request(code, header, body)).body

    async def request(
        self, code: int, header: object | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return the whole answer, with its header; raises as `request_body`."""
        answer = await self.pool.request(self.address, request(code, header, body), self.timeout_s)
        raise_for_response(answer)
        return answer


class AdminCalls(Lifetime):
    """Finds the servers that a method of `AdminClient` needs.

    Args and Raises: as `AdminClient`.
    """

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        credentials: AnyCredentials | None = None,
        config: AdminConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._config = resolve_config(config, AdminConfig, credentials)
        self._instance = ClientInstance(namesrv_addr, self._config, runtime, kind="admin client")

    async def start(self) -> None:
        """Start; no request is sent before the first call.

        Raises:
            ClosedError: the client was started before.
        """
        self._instance.start()

    async def close(self) -> None:
        """Close all connections; calls in progress fail. A second call has no effect."""
        if self._instance.stop():
            await self._instance.close()
        else:
            await self._instance.wait_ended()

    async def cluster_info(self) -> ClusterInfo:
        """Return the brokers and clusters registered at a name server."""
        answer = await self._request_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_cluster_info(answer.body)

    async def topic_route(self, topic: str) -> TopicRoute:
        """Look up and return the route of the topic.

        Raises:
            TopicNotFoundError: the name servers do not have the topic.
        """
        check_topic(topic)
        # Without the client's route cache, which keeps the routes of deleted topics.
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        try:
            answer = await self._request_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except TopicNotFoundError as error:
            raise TopicNotFoundError(
                error.code,
                f"no name server of {self._instance.name_servers.text} has the topic {topic}: "
                f"find its name (kourou topic list), or create it (kourou topic create {topic})",
            ) from error
        return decode_topic_route(answer.body)

    @property
    def _timeout_s(self) -> float:
        return self._config.admin_timeout_ms / 1000

    def _server(self, address: str) -> Server:
        """Return the server at `host:port`.

        Raises:
            ClosedError: the client is not open.
        """
        self._instance.check_open()
        return Server(self._instance.pool, address, self._timeout_s)

    async def _request_name_server(
        self, code: int, header: object | None = None
    ) -> RemotingCommand:
        """Return the answer of the first name server that answers; all have the same data."""
        self._instance.check_open()
        return await self._instance.name_servers.request(request(code, header), self._timeout_s)

    async def _call_name_servers(self, call: Callable[[Server], Awaitable[T]]) -> dict[str, T]:
        """Call all name servers concurrently, and return their answers by address.

        Raises:
            KourouError: the first failure, raised after all calls have ended.
        """
        self._instance.check_open()
        addresses = await self._instance.name_servers.all()
        answers = await asyncio.gather(
            *(call(self._server(address)) for address in addresses), return_exceptions=True
        )
        by_address = {}
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            by_address[address] = answer
        return by_address

    async def _masters(
        self, *, broker_name: str | None = None, cluster: str | None = None
    ) -> dict[str, Server]:
        """Return the masters by broker name, filtered by broker name and cluster.

        Raises:
            NoRouteError: there is no such master.
        """
        info = await self.cluster_info()
        masters = {
            name: self._server(broker.broker_addrs[MASTER_ID])
            for name, broker in sorted(info.brokers.items())
            if MASTER_ID in broker.broker_addrs
            and broker_name in (None, name)
            and cluster in (None, broker.cluster)
        }
        if not masters:
            filters = " ".join(
                f"{what} {name}"
                for what, name in (("named", broker_name), ("in cluster", cluster))
                if name is not None
            )
            known = ", ".join(sorted(info.brokers)) or "none"
            raise NoRouteError(
                f"no broker {filters}".rstrip() + f" has a master; known are: {known}"
            )
        return masters

    async def _topic_masters(self, topic: str) -> dict[str, Server]:
        route = await self.topic_route(topic)
        return {
            broker.broker_name: self._server(broker.broker_addrs[MASTER_ID])
            for broker in route.broker_datas
            if MASTER_ID in broker.broker_addrs
        }

    async def _topic_master(self, topic: str, broker_name: str) -> Server:
        """Return the master of a topic's broker.

        Raises:
            TopicNotFoundError: the name servers do not have the topic, or it is not on the broker.
        """
        masters = await self._topic_masters(topic)
        server = masters.get(broker_name)
        if server is None:
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} is not on {broker_name}, "
                f"but on: {', '.join(sorted(masters)) or 'none'}",
            )
        return server


async def call_all(
    servers: Mapping[str, Server], call: Callable[[Server], Awaitable[T]]
) -> dict[str, T]:
    """Call all servers concurrently, and return their answers by name; raise the first error."""
    answers = await asyncio.gather(*map(call, servers.values()))
    return dict(zip(servers, answers, strict=True))
