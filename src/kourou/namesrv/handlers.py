"""What the name server answers: from a request to a call of the route table, and back.

Source: DefaultRequestProcessor.java and ClientRequestProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kourou.errors import RemoteSystemError, TopicNotFoundError
from kourou.namesrv.routes import BrokerIdentity, RouteTable
from kourou.namesrv.zones import ZONE_NAME, wanted_zone, within_zone
from kourou.protocol.bodies import (
    decode_data_version,
    decode_register_body,
    encode_cluster_info,
    encode_data_version,
    encode_topic_list,
    encode_topic_route,
)
from kourou.protocol.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.hashing import crc32
from kourou.protocol.headers_route import (
    BrokerHeartbeatRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerRequestHeader,
)
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler

log = logging.getLogger(__name__)


class NamesrvHandlers:
    """The name server's side of each request it serves.

    Args:
        routes: what is asked and changed.
        now_ms: a time that only grows, so that a clock set forward does not expire brokers.
    """

    def __init__(self, routes: RouteTable, now_ms: Callable[[], int]) -> None:
        self._routes = routes
        self._now_ms = now_ms

    def table(self) -> Mapping[int, Handler]:
        """Return which handler serves which code."""
        return {
            RequestCode.REGISTER_BROKER: self.on_register_broker,
            RequestCode.UNREGISTER_BROKER: self.on_unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self.on_broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.on_query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.on_get_route_info,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.on_get_cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.on_get_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.on_get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.on_get_system_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.on_delete_topic,
        }

    # Brokers

    def on_register_broker(self, request: Request) -> RemotingCommand:
        """REGISTER_BROKER (103)."""
        command = request.command
        header = command.header(RegisterBrokerRequestHeader)
        if header.body_crc32 != 0 and header.body_crc32 != crc32(command.body):
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = decode_register_body(
            command.body, compressed=header.compressed, version=command.version
        )
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
        is_new = self._routes.data_version(*identity.key) is None
        master = self._routes.register(identity, body.table, request.connection, self._now_ms())
        if is_new:
            log.info(
                "broker.registered cluster=%s name=%s id=%d address=%s topics=%d",
                *log_values(identity),
                len(body.table.topics),
            )
        answer = RegisterBrokerResponseHeader(master.ha_address, master.address)
        return response(command, header=answer)

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
        """QUERY_DATA_VERSION (322): must the broker register again?"""
        command = request.command
        header = command.header(QueryDataVersionRequestHeader)
        asked = decode_data_version(command.body)
        known = self._routes.data_version(header.cluster_name, header.broker_addr)
        self._routes.refresh(header.cluster_name, header.broker_addr, self._now_ms())
        answer = QueryDataVersionResponseHeader(changed=known != asked)
        body = b"" if known is None else encode_data_version(known)
        return response(command, header=answer, body=body)

    # Clients and administrators

    def on_get_route_info(self, request: Request) -> RemotingCommand:
        """GET_ROUTEINFO_BY_TOPIC (105)."""
        command = request.command
        header = command.header(GetRouteInfoRequestHeader)
        route = self._routes.route(header.topic)
        if route is None:
            name = command.ext_fields.get("topic", "null")
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {name}\n"
                "No broker that has it is registered here: create it, or start its broker.",
            )
        is_standard = bool(
            command.version >= VERSION_STANDARD_JSON or header.accept_standard_json_only
        )
        zone = wanted_zone(command.ext_fields)
        if zone is not None:
            route = within_zone(route, zone)
            is_standard = False  # as Java, whose filter forgets what the client reads
        return response(command, body=encode_topic_route(route, standard=is_standard))

    def on_get_cluster_info(self, request: Request) -> RemotingCommand:
        """GET_BROKER_CLUSTER_INFO (106)."""
        body = encode_cluster_info(self._routes.cluster_info())
        return response(request.command, body=body)

    def on_get_all_topics(self, request: Request) -> RemotingCommand:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        return response(request.command, body=encode_topic_list(self._routes.topics()))

    def on_get_topics_by_cluster(self, request: Request) -> RemotingCommand:
        """GET_TOPICS_BY_CLUSTER (224); an unknown cluster has none."""
        header = request.command.header(GetTopicsByClusterRequestHeader)
        topics = self._routes.topics_of_cluster(header.cluster)
        return response(request.command, body=encode_topic_list(topics))

    def on_get_system_topics(self, request: Request) -> RemotingCommand:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304): clusters and brokers, which are topics too."""
        info = self._routes.cluster_info()
        addresses = [
            address for data in info.brokers.values() for address in data.broker_addrs.values()
        ]
        body = encode_topic_list(
            [*info.clusters, *info.brokers], broker_addr=addresses[0] if addresses else None
        )
        return response(request.command, body=body)

    def on_delete_topic(self, request: Request) -> RemotingCommand:
        """DELETE_TOPIC_IN_NAMESRV (216); the brokers that have it were told before."""
        header = request.command.header(DeleteTopicFromNamesrvRequestHeader)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return response(request.command)


def log_values(identity: BrokerIdentity) -> tuple[str, str, int, str]:
    """Return a broker's cluster, name, id and address, as log entries give them."""
    return identity.cluster, identity.broker_name, identity.broker_id, identity.address
