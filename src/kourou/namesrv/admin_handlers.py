"""Handlers of the administration requests to the name server.

    100  PUT_KV_CONFIG                         1: no namespace or key
    101  GET_KV_CONFIG                         22: no such key
    102  DELETE_KV_CONFIG                      an unknown key is not an error
    205  WIPE_WRITE_PERM_OF_BROKER             327 ADD_WRITE_PERM_OF_BROKER
    206  GET_ALL_TOPIC_LIST_FROM_NAMESERVER    1: disabled by an option; also 224 and 311 to 313
    216  DELETE_TOPIC_IN_NAMESRV
    217  REGISTER_TOPIC_IN_NAMESRV
    219  GET_KVLIST_BY_NAMESPACE               22: no such namespace
    224  GET_TOPICS_BY_CLUSTER
    304  GET_SYSTEM_TOPIC_LIST_FROM_NS
    311  GET_UNIT_TOPIC_LIST                   312, 313: topics that consumers of units read
    318  UPDATE_NAMESRV_CONFIG                 16: cannot be changed; 1: a bad value
    319  GET_NAMESRV_CONFIG

A change of the key-value configuration is answered once it is durable.

Source: DefaultRequestProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kourou.errors import QueryNotFoundError, RemoteSystemError
from kourou.model.route import replace_wildcard_host
from kourou.namesrv.config import LiveConfig
from kourou.namesrv.kv_config import KvConfig
from kourou.namesrv.routes import RouteTable
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.kv_config import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    encode_kv_table,
)
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.routes import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetTopicsByClusterRequestHeader,
    RegisterTopicRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_topic_route,
)
from kourou.protocol.topics import encode_topic_list
from kourou.remoting.connection import Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.dispatch import Handler

log = logging.getLogger(__name__)


class NamesrvAdminHandlers:
    """Handlers of the administration requests.

    Args:
        routes: topics and brokers, read and changed.
        kv: key-value configuration, read and changed.
        config: options, read and changed.
        later: sends an answer once the change is durable.
    """

    def __init__(
        self, routes: RouteTable, kv: KvConfig, config: LiveConfig, later: DeferredReplies
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._config = config
        self._later = later

    def table(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        queues = self._routes.queues
        return {
            RequestCode.PUT_KV_CONFIG: self.on_put_kv_config,
            RequestCode.GET_KV_CONFIG: self.on_get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self.on_delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.on_get_kv_list,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.on_wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.on_add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.on_get_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.on_get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.on_get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._topic_list_handler(queues.unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._topic_list_handler(
                queues.unit_sub_topics
            ),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._topic_list_handler(
                queues.unit_sub_ununit_topics
            ),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.on_delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.on_register_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.on_update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.on_get_config,
        }

    # Key-value configuration

    def on_put_kv_config(self, request: Request) -> None:
        """Serve 100."""
        header = request.command.header(PutKVConfigRequestHeader)
        if header.namespace is None or header.key is None:
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        if header.value is None:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR, "value is missing; DELETE_KV_CONFIG removes a key"
            )
        self._kv.put(header.namespace, header.key, header.value)
        log.info("kv_config.put namespace=%s key=%s", header.namespace, header.key)
        self._later.answer(request, lambda: self._persisted(request))

    def on_delete_kv_config(self, request: Request) -> None:
        """Serve 102."""
        header = request.command.header(DeleteKVConfigRequestHeader)
        self._kv.delete(header.namespace, header.key)
        log.info("kv_config.deleted namespace=%s key=%s", header.namespace, header.key)
        self._later.answer(request, lambda: self._persisted(request))

    def on_get_kv_config(self, request: Request) -> RemotingCommand:
        """Serve 101."""
        header = request.command.header(GetKVConfigRequestHeader)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFoundError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return response(request.command, header=GetKVConfigResponseHeader(value))

    def on_get_kv_list(self, request: Request) -> RemotingCommand:
        """Serve 219."""
        name = request.command.header(GetKVListByNamespaceRequestHeader).namespace
        values = self._kv.namespace(name)
        if values is None:
            raise QueryNotFoundError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {name}"
            )
        return response(request.command, body=encode_kv_table(values))

    async def _persisted(self, request: Request) -> RemotingCommand:
        """Return success once all changes are durable."""
        try:
            await self._kv.persist()
        except OSError as error:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"the change holds until the name server stops, but cannot be saved: {error}",
            ) from error
        return response(request.command)

    # Write permission

    def on_wipe_write_perm(self, request: Request) -> RemotingCommand:
        """Serve 205. The broker's next topic change restores the permission, and so does 327."""
        name = request.command.header(WipeWritePermOfBrokerRequestHeader).broker_name
        count = self._routes.queues.wipe_write(name)
        log.info("write_perm.wiped broker=%s topics=%d", name, count)
        return response(request.command, header=WipeWritePermOfBrokerResponseHeader(count))

    def on_add_write_perm(self, request: Request) -> RemotingCommand:
        """Serve 327."""
        name = request.command.header(AddWritePermOfBrokerRequestHeader).broker_name
        count = self._routes.queues.add_write(name)
        log.info("write_perm.added broker=%s topics=%d", name, count)
        return response(request.command, header=AddWritePermOfBrokerResponseHeader(count))

    # Topics

    def on_get_all_topics(self, request: Request) -> RemotingCommand:
        """Serve 206."""
        _check_enabled(self._config.current.enable_all_topic_list)
        return response(request.command, body=encode_topic_list(self._routes.queues.topics()))

    def on_get_topics_by_cluster(self, request: Request) -> RemotingCommand:
        """Serve 224; an unknown cluster has none."""
        _check_enabled(self._config.current.enable_topic_list)
        cluster = request.command.header(GetTopicsByClusterRequestHeader).cluster
        topics = self._routes.topics_of_cluster(cluster)
        return response(request.command, body=encode_topic_list(topics))

    def on_get_system_topics(self, request: Request) -> RemotingCommand:
        """Serve 304: return the names of all clusters and brokers, which are system topics."""
        info = self._routes.cluster_info()
        addresses = [
            address for data in info.brokers.values() for address in data.broker_addrs.values()
        ]
        host = request.connection.local_address[0]
        body = encode_topic_list(
            [*info.clusters, *info.brokers],
            broker_addr=replace_wildcard_host(addresses[0], host) if addresses else None,
        )
        return response(request.command, body=body)

    def _topic_list_handler(self, topics: Callable[[], list[str]]) -> Handler:
        """Return the handler of 311, 312 or 313."""

        def on_get_unit_topics(request: Request) -> RemotingCommand:
            _check_enabled(self._config.current.enable_topic_list)
            return response(request.command, body=encode_topic_list(topics()))

        return on_get_unit_topics

    def on_delete_topic(self, request: Request) -> RemotingCommand:
        """Serve 216. The caller deletes the topic at its brokers first."""
        header = request.command.header(DeleteTopicFromNamesrvRequestHeader)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return response(request.command)

    def on_register_topic(self, request: Request) -> RemotingCommand:
        """Serve 217. The topic stays until its brokers leave or it is deleted here.

        The brokers themselves do not get the topic.
        """
        topic = request.command.header(RegisterTopicRequestHeader).topic
        if request.command.body:
            route = decode_topic_route(request.command.body)
            self._routes.register_topic(topic, route.queue_datas)
        return response(request.command)

    # Options

    def on_get_config(self, request: Request) -> RemotingCommand:
        """Serve 319."""
        return response(request.command, body=encode_properties_text(self._config.values()))

    def on_update_config(self, request: Request) -> RemotingCommand:
        """Serve 318."""
        self._config.change(decode_properties_text(request.command.body))
        return response(request.command)


def _check_enabled(is_enabled: bool) -> None:  # noqa: FBT001 - the flag is the only argument
    if not is_enabled:
        raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "disable")
