"""Handlers of the requests that brokers and clients send to the name server.

    103  REGISTER_BROKER         1: single change of an unregistered broker, bad checksum, a limit
    104  UNREGISTER_BROKER
    105  GET_ROUTEINFO_BY_TOPIC  17: no broker has the topic; 1: not ready yet
    106  GET_BROKER_CLUSTER_INFO
    322  QUERY_DATA_VERSION      whether the broker must register again
    901  GET_BROKER_MEMBER_GROUP
    904  BROKER_HEARTBEAT

Requests of administrators are in `admin_handlers.py`.

A broker on the same machine that listens on all addresses may register with a wildcard host, such
as `0.0.0.0:10911`. Answers replace that host with the name server's address on the client's own
connection.

Source: DefaultRequestProcessor.java and ClientRequestProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, cast

from kourou.errors import RemoteSystemError, TopicNotFoundError
from kourou.model.route import is_wildcard, replace_wildcard_host
from kourou.namesrv.broker_identity import BrokerIdentity
from kourou.namesrv.config import LiveConfig
from kourou.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from kourou.namesrv.routes import (
    ZONE_NAME,
    RouteTable,
    filter_zone,
    requested_zone,
    run_steps,
    with_acting_masters,
)
from kourou.protocol.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.data_version import decode_data_version, encode_data_version
from kourou.protocol.hashing import crc32
from kourou.protocol.json_records import encode_record
from kourou.protocol.kv_config import encode_kv_table
from kourou.protocol.routes import (
    BrokerMemberGroup,
    GetBrokerMemberGroupRequestHeader,
    GetBrokerMemberGroupResponse,
    GetRouteInfoRequestHeader,
    encode_cluster_info,
    encode_topic_route,
)
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBody,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerRequestHeader,
    decode_register_body,
)
from kourou.remoting.connection import Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import is_loopback
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

ON_LOOP_BYTES: Final = 64 * 1024
"""Largest registration body that is decoded on the event loop; this takes 10 ms at most. Single
changes are smaller; a registration of all topics may be larger."""
COMPRESSED_ON_LOOP_BYTES: Final = 2 * 1024
"""The same for a compressed body."""


class NamesrvHandlers:
    """Handlers of the requests of brokers and clients.

    Args:
        routes: topics and brokers, read and changed.
        kv: source of the ordered topics.
        config: the current options, read at each request.
        now_ms: monotonic clock, so that a wall clock set forward does not expire brokers.
        offload: runs the decoding of large registrations off the event loop.
        later: sends the answers to large registrations.
    """

    def __init__(
        self,
        routes: RouteTable,
        kv: KvConfig,
        config: LiveConfig,
        now_ms: Callable[[], int],
        *,
        offload: Offload,
        later: DeferredReplies,
    ) -> None:
        self._offload = offload
        self._later = later
        self._register_lock = asyncio.Lock()
        self._offloaded_count = 0
        self._routes = routes
        self._kv = kv
        self._config = config
        self._now_ms = now_ms
        self._started_at_ms = now_ms()

    def table(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.REGISTER_BROKER: self.on_register_broker,
            RequestCode.UNREGISTER_BROKER: self.on_unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self.on_broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.on_query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.on_get_route_info,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.on_get_cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.on_get_broker_member_group,
        }

    # Brokers

    def on_register_broker(self, request: Request) -> RemotingCommand | None:
        """REGISTER_BROKER (103).

        A large body is decoded off the event loop, and its topics are entered in slices.
        Registrations that arrive meanwhile are queued behind it, because the later one of two
        registrations of a broker must take effect last.
        """
        command = request.command
        header = command.header(RegisterBrokerRequestHeader)
        if header.body_crc32 != 0 and header.body_crc32 != crc32(command.body):
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        decode = partial(
            decode_register_body,
            command.body,
            compressed=header.compressed,
            version=command.version,
        )
        size_max = COMPRESSED_ON_LOOP_BYTES if header.compressed else ON_LOOP_BYTES
        if len(command.body) <= size_max and not self._offloaded_count:
            return run_steps(self._register(request, header, decode()))
        self._later.answer(request, partial(self._register_offloaded, request, header, decode))
        self._offloaded_count += 1
        return None

    async def _register_offloaded(
        self,
        request: Request,
        header: RegisterBrokerRequestHeader,
        decode: Callable[[], RegisterBody],
    ) -> RemotingCommand:
        try:
            async with self._register_lock:
                body = await self._offload(decode)
                # A closed connection never closes again, so nothing would unregister the broker.
                if not request.connection.is_open:
                    return response(request.command)
                steps = self._register(request, header, body)
                while True:
                    try:
                        next(steps)
                    except StopIteration as end:
                        return cast(RemotingCommand, end.value)
                    await asyncio.sleep(0)
        finally:
            self._offloaded_count -= 1

    def _register(
        self, request: Request, header: RegisterBrokerRequestHeader, body: RegisterBody
    ) -> Generator[None, None, RemotingCommand]:
        """Enter the broker and its topics; yield after each slice of a large registration."""
        command = request.command
        identity = BrokerIdentity(
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            header.ha_server_addr,
            header.heartbeat_timeout_millis,
            header.enable_acting_master,
            command.ext_fields.get(ZONE_NAME),
        )
        _check_reachable(identity.address, request)
        is_new = self._routes.data_version(*identity.key) is None
        master = yield from self._routes.register_steps(
            identity,
            body.table,
            request.connection,
            self._now_ms(),
            drop_missing=self._config.current.delete_topic_with_broker_registration,
        )
        if is_new:
            log.info(
                "broker.registered cluster=%s name=%s id=%d address=%s topics=%d",
                *log_values(identity),
                len(body.table.topics),
            )
        host = request.connection.local_address[0]
        answer = RegisterBrokerResponseHeader(
            *(
                one and replace_wildcard_host(one, host)
                for one in (master.ha_address, master.address)
            )
        )
        return response(command, header=answer, body=self._ordered_topics())

    def on_unregister_broker(self, request: Request) -> RemotingCommand:
        """UNREGISTER_BROKER (104)."""
        header = request.command.header(UnregisterBrokerRequestHeader)
        self._routes.unregister(header.cluster_name, header.broker_addr)
        log.info("broker.unregistered name=%s address=%s", header.broker_name, header.broker_addr)
        return response(request.command)

    def on_broker_heartbeat(self, request: Request) -> RemotingCommand:
        """BROKER_HEARTBEAT (904)."""
        header = request.command.header(BrokerHeartbeatRequestHeader)
        self._routes.refresh(header.cluster_name, header.broker_addr, self._now_ms())
        return response(request.command)

    def on_query_data_version(self, request: Request) -> RemotingCommand:
        """QUERY_DATA_VERSION (322): answer whether the broker must register again."""
        command = request.command
        header = command.header(QueryDataVersionRequestHeader)
        version = decode_data_version(command.body)
        registered = self._routes.data_version(header.cluster_name, header.broker_addr)
        self._routes.refresh(header.cluster_name, header.broker_addr, self._now_ms())
        answer = QueryDataVersionResponseHeader(changed=registered != version)
        body = b"" if registered is None else encode_data_version(registered)
        return response(command, header=answer, body=body)

    # Clients

    def on_get_route_info(self, request: Request) -> RemotingCommand:
        """GET_ROUTEINFO_BY_TOPIC (105)."""
        command = request.command
        self._check_ready()
        header = command.header(GetRouteInfoRequestHeader)
        route = self._routes.route(header.topic)
        if route is None:
            name = command.ext_fields.get("topic", "null")
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {name}\n"
                "No registered broker has this topic: create the topic, or start its broker.",
            )
        config = self._config.current
        if config.support_acting_master:
            route = with_acting_masters(header.topic, route)
        if config.order_message_enable:
            queues = self._kv.get(ORDER_TOPIC_CONFIG, header.topic)
            route = replace(route, order_topic_conf=queues)
        is_standard = bool(
            command.version >= VERSION_STANDARD_JSON or header.accept_standard_json_only
        )
        zone = requested_zone(command.ext_fields)
        if zone is not None:
            route = filter_zone(route, zone)
            is_standard = False  # as in Java, where the zone hook encodes the route a second time
        route = route.with_host(request.connection.local_address[0])
        return response(command, body=encode_topic_route(route, standard=is_standard))

    def on_get_cluster_info(self, request: Request) -> RemotingCommand:
        """GET_BROKER_CLUSTER_INFO (106)."""
        info = self._routes.cluster_info()
        host = request.connection.local_address[0]
        brokers = {name: data.with_host(host) for name, data in info.brokers.items()}
        return response(request.command, body=encode_cluster_info(replace(info, brokers=brokers)))

    def on_get_broker_member_group(self, request: Request) -> RemotingCommand:
        """GET_BROKER_MEMBER_GROUP (901): return the addresses of a broker name, perhaps none.

        The remark that Java adds to its success, `not set any response code`, is omitted.
        """
        header = request.command.header(GetBrokerMemberGroupRequestHeader)
        broker = self._routes.members(header.cluster_name, header.broker_name).with_host(
            request.connection.local_address[0]
        )
        members = GetBrokerMemberGroupResponse(
            BrokerMemberGroup(broker.cluster, broker.broker_name, broker.broker_addrs)
        )
        return response(request.command, body=encode_record(members))

    def _check_ready(self) -> None:
        """Refuse the request during the start-up wait, in which brokers register."""
        config = self._config.current
        uptime_ms = self._now_ms() - self._started_at_ms
        if config.need_wait_for_service and uptime_ms < config.wait_for_service_s * 1000:
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "name server not ready")

    def _ordered_topics(self) -> bytes:
        """Return the body of the answer to a registration: the KVTable of ordered topics."""
        if not self._config.current.return_order_topic_config_to_broker:
            return b""
        topics = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return b"" if topics is None else encode_kv_table(topics)


def log_values(identity: BrokerIdentity) -> tuple[str, str, int, str]:
    """Return a broker's cluster, name, id and address, in the order of the log entries."""
    return identity.cluster, identity.broker_name, identity.broker_id, identity.address


def _check_reachable(address: str, request: Request) -> None:
    """Refuse a broker address to which no client can connect.

    Raises:
        RemoteSystemError: a broker on another machine registers a wildcard host.
    """
    if not is_wildcard(address):
        return
    peer, local = request.connection.remote_address[0], request.connection.local_address[0]
    if peer != local and not is_loopback(peer):
        raise RemoteSystemError(
            ResponseCode.SYSTEM_ERROR,
            f"register broker failed: clients cannot connect to {address}; start the broker with "
            "--advertise (brokerIP1) and its address",
        )
