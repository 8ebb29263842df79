"""Which header and body go with which request; one table.

It covers what this version serves or asks: sending, pulling, offsets, heartbeats, routes,
registration, topics and groups. Pop, transactions, locks, queries by key, configuration, access
control and controllers come later; a request that is not listed is answered "not supported".
A body that is the user's own (a message) or made of records has no decoder here.

Source: RequestCode.java and the request processors of broker, namesrv and client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kourou.protocol import bodies
from kourou.protocol import headers_admin as admin
from kourou.protocol import headers_consume as consume
from kourou.protocol import headers_route as route
from kourou.protocol import headers_send as send
from kourou.protocol.codes import RequestCode
from kourou.protocol.message_batch import decode_batch
from kourou.protocol.message_layout import decode_message, decode_messages

BodyDecoder = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a request and the answer to it carry.

    Attributes:
        header: class of the request's header fields; None if it has none.
        response_header: class of those of an answer with code 0; None if it has none.
        request_body: reads the request's body; None if it has none or it is the user's own.
        response_body: reads the body of an answer with code 0.
    """

    code: RequestCode
    header: type | None = None
    response_header: type | None = None
    request_body: BodyDecoder | None = None
    response_body: BodyDecoder | None = None


_SPECS: Final = (
    # Sending
    RequestSpec(
        RequestCode.SEND_MESSAGE, send.SendMessageRequestHeader, send.SendMessageResponseHeader
    ),
    RequestSpec(
        RequestCode.SEND_MESSAGE_V2,
        send.SendMessageRequestHeaderV2,
        send.SendMessageResponseHeader,
    ),
    RequestSpec(
        RequestCode.SEND_BATCH_MESSAGE,
        send.SendMessageRequestHeaderV2,
        send.SendMessageResponseHeader,
        request_body=decode_batch,
    ),
    RequestSpec(RequestCode.CONSUMER_SEND_MSG_BACK, send.ConsumerSendMsgBackRequestHeader),
    # Consuming
    RequestSpec(
        RequestCode.PULL_MESSAGE,
        consume.PullMessageRequestHeader,
        consume.PullMessageResponseHeader,
        response_body=decode_messages,
    ),
    RequestSpec(
        RequestCode.LITE_PULL_MESSAGE,
        consume.PullMessageRequestHeader,
        consume.PullMessageResponseHeader,
        response_body=decode_messages,
    ),
    RequestSpec(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, consume.GetConsumerListByGroupRequestHeader
    ),
    RequestSpec(
        RequestCode.QUERY_CONSUMER_OFFSET,
        consume.QueryConsumerOffsetRequestHeader,
        consume.QueryConsumerOffsetResponseHeader,
    ),
    RequestSpec(RequestCode.UPDATE_CONSUMER_OFFSET, consume.UpdateConsumerOffsetRequestHeader),
    RequestSpec(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        consume.SearchOffsetRequestHeader,
        consume.SearchOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_MAX_OFFSET,
        consume.GetMaxOffsetRequestHeader,
        consume.GetMaxOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_MIN_OFFSET,
        consume.GetMinOffsetRequestHeader,
        consume.GetMinOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        consume.GetEarliestMsgStoretimeRequestHeader,
        consume.GetEarliestMsgStoretimeResponseHeader,
    ),
    RequestSpec(
        RequestCode.VIEW_MESSAGE_BY_ID,
        consume.ViewMessageRequestHeader,
        response_body=decode_message,
    ),
    RequestSpec(
        RequestCode.HEART_BEAT,
        consume.HeartbeatRequestHeader,
        consume.HeartbeatResponseHeader,
        request_body=bodies.decode_heartbeat,
    ),
    RequestSpec(RequestCode.UNREGISTER_CLIENT, consume.UnregisterClientRequestHeader),
    RequestSpec(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        consume.GetConsumerListByGroupRequestHeader,
        response_body=bodies.decode_consumer_list,
    ),
    RequestSpec(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, consume.NotifyConsumerIdsChangedRequestHeader
    ),
    RequestSpec(RequestCode.CHECK_CLIENT_CONFIG, request_body=bodies.decode_check_client_config),
    # Name server
    RequestSpec(
        RequestCode.REGISTER_BROKER,
        route.RegisterBrokerRequestHeader,
        route.RegisterBrokerResponseHeader,
        bodies.decode_register_body,
        bodies.decode_kv_table,
    ),
    RequestSpec(RequestCode.UNREGISTER_BROKER, route.UnregisterBrokerRequestHeader),
    RequestSpec(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        route.GetRouteInfoRequestHeader,
        response_body=bodies.decode_topic_route,
    ),
    RequestSpec(RequestCode.GET_BROKER_CLUSTER_INFO, response_body=bodies.decode_cluster_info),
    RequestSpec(
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, response_body=bodies.decode_topic_list
    ),
    RequestSpec(
        RequestCode.GET_TOPICS_BY_CLUSTER,
        route.GetTopicsByClusterRequestHeader,
        response_body=bodies.decode_topic_list,
    ),
    RequestSpec(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, response_body=bodies.decode_topic_list),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_NAMESRV, route.DeleteTopicFromNamesrvRequestHeader),
    RequestSpec(
        RequestCode.QUERY_DATA_VERSION,
        route.QueryDataVersionRequestHeader,
        route.QueryDataVersionResponseHeader,
        bodies.decode_data_version,
        bodies.decode_data_version,
    ),
    RequestSpec(RequestCode.BROKER_HEARTBEAT, route.BrokerHeartbeatRequestHeader),
    # Administration
    RequestSpec(RequestCode.UPDATE_AND_CREATE_TOPIC, admin.CreateTopicRequestHeader),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_BROKER, admin.DeleteTopicRequestHeader),
    RequestSpec(
        RequestCode.GET_TOPIC_CONFIG,
        admin.GetTopicConfigRequestHeader,
        response_body=bodies.decode_topic_config,
    ),
    RequestSpec(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        admin.GetAllTopicConfigRequestHeader,
        admin.GetAllTopicConfigResponseHeader,
        response_body=bodies.decode_topic_config_table,
    ),
    RequestSpec(
        RequestCode.GET_TOPIC_STATS_INFO,
        admin.GetTopicStatsInfoRequestHeader,
        response_body=bodies.decode_topic_stats,
    ),
    RequestSpec(
        RequestCode.GET_CONSUME_STATS,
        admin.GetConsumeStatsRequestHeader,
        response_body=bodies.decode_consume_stats,
    ),
    RequestSpec(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        request_body=bodies.decode_subscription_group,
    ),
    RequestSpec(RequestCode.DELETE_SUBSCRIPTIONGROUP, admin.DeleteSubscriptionGroupRequestHeader),
    RequestSpec(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        admin.GetSubscriptionGroupConfigRequestHeader,
        response_body=bodies.decode_subscription_group,
    ),
    RequestSpec(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        admin.GetAllSubscriptionGroupRequestHeader,
        admin.GetAllSubscriptionGroupResponseHeader,
        response_body=bodies.decode_subscription_group_table,
    ),
)

REQUESTS: Final[dict[int, RequestSpec]] = {spec.code: spec for spec in _SPECS}
"""Request code to what it carries."""
