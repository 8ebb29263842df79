"""Specifications of the admin requests of brokers."""

from __future__ import annotations

from typing import Final

from kourou.protocol import bodies, bodies_auth, bodies_static_topics, bodies_timer
from kourou.protocol import headers_admin as admin
from kourou.protocol import headers_admin_broker as broker
from kourou.protocol import headers_admin_clients as clients
from kourou.protocol import headers_admin_offsets as offsets
from kourou.protocol import headers_auth as auth
from kourou.protocol.bodies_consume_queue import decode_consume_queue, encode_consume_queue
from kourou.protocol.codes import RequestCode
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.registry_specs import (
    TEXT_CODEC,
    BodyCodec,
    RequestSpec,
    record_codec,
    record_list_codec,
)

_PROPERTIES: Final = BodyCodec(decode_properties_text, encode_properties_text)
_TOPIC: Final = BodyCodec(bodies.decode_topic_config, bodies.encode_topic_config)
_TOPICS: Final = BodyCodec(bodies.decode_topic_config_list, bodies.encode_topic_config_list)
_TOPIC_TABLE: Final = BodyCodec(bodies.decode_topic_config_table, bodies.encode_topic_config_table)
_TOPIC_STATS: Final = BodyCodec(bodies.decode_topic_stats, bodies.encode_topic_stats)
_TOPIC_LIST: Final = record_codec(bodies.TopicList)
_GROUP: Final = BodyCodec(bodies.decode_subscription_group, bodies.encode_subscription_group)
_GROUPS: Final = BodyCodec(
    bodies.decode_subscription_group_list, bodies.encode_subscription_group_list
)
_GROUP_TABLE: Final = BodyCodec(
    bodies.decode_subscription_group_table, bodies.encode_subscription_group_table
)
_GROUP_LIST: Final = BodyCodec(bodies.decode_group_list, bodies.encode_group_list)
_GROUP_SUBSCRIPTION: Final = BodyCodec(
    bodies.decode_group_subscription, bodies.encode_group_subscription
)
_CONSUMERS: Final = BodyCodec(bodies.decode_consumer_connection, bodies.encode_consumer_connection)
_PRODUCERS: Final = BodyCodec(bodies.decode_producer_connection, bodies.encode_producer_connection)
_PRODUCER_TABLE: Final = BodyCodec(bodies.decode_producer_table, bodies.encode_producer_table)
_CONSUME_STATS: Final = BodyCodec(bodies.decode_consume_stats, bodies.encode_consume_stats)
_CONSUME_STATS_LIST: Final = BodyCodec(
    bodies.decode_consume_stats_list, bodies.encode_consume_stats_list
)
_TIME_SPANS: Final = BodyCodec(bodies.decode_consume_time_spans, bodies.encode_consume_time_spans)
_BROKER_STATS: Final = BodyCodec(bodies.decode_broker_stats, bodies.encode_broker_stats)
_KV_TABLE: Final = BodyCodec(bodies.decode_kv_table, bodies.encode_kv_table)
_RESET: Final = BodyCodec(bodies.decode_reset_offsets, bodies.encode_reset_offsets)
_STATUS: Final = BodyCodec(bodies.decode_consumer_status, bodies.encode_consumer_status)
_CORRECTION: Final = BodyCodec(bodies.decode_correction_offsets, bodies.encode_correction_offsets)
_OFFSET_TABLE: Final = BodyCodec(
    bodies.decode_consumer_offset_table, bodies.encode_consumer_offset_table
)
_DELAY_TABLE: Final = BodyCodec(bodies.decode_delay_offset_table, bodies.encode_delay_offset_table)
_CONSUME_QUEUE: Final = BodyCodec(decode_consume_queue, encode_consume_queue)
_CHECK_POINT: Final = BodyCodec(
    bodies_timer.decode_timer_check_point, bodies_timer.encode_timer_check_point
)
_USER: Final = record_codec(bodies_auth.UserInfo)
_ACL: Final = record_codec(bodies_auth.AclInfo)

_LIST_BYTES_MAX: Final = 32 * 1024
"""Largest body with a list of topics or groups to create at once: a few hundred entries."""

TOPICS: Final = (
    RequestSpec(RequestCode.UPDATE_AND_CREATE_TOPIC, admin.CreateTopicRequestHeader),
    RequestSpec(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        admin.CreateTopicListRequestHeader,
        request_body=_TOPICS,
        body_bytes_max=_LIST_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        admin.CreateTopicRequestHeader,
        request_body=record_codec(bodies_static_topics.TopicQueueMappingDetail),
    ),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_BROKER, admin.DeleteTopicRequestHeader),
    RequestSpec(
        RequestCode.GET_TOPIC_CONFIG, admin.GetTopicConfigRequestHeader, response_body=_TOPIC
    ),
    RequestSpec(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        admin.GetAllTopicConfigRequestHeader,
        admin.GetAllTopicConfigResponseHeader,
        response_body=_TOPIC_TABLE,
    ),
    RequestSpec(
        RequestCode.GET_TOPIC_STATS_INFO,
        admin.GetTopicStatsInfoRequestHeader,
        response_body=_TOPIC_STATS,
    ),
    RequestSpec(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, response_body=_TOPIC_LIST),
    RequestSpec(
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        clients.QueryTopicsByConsumerRequestHeader,
        response_body=_TOPIC_LIST,
    ),
    RequestSpec(RequestCode.CLEAN_UNUSED_TOPIC),
)

GROUPS: Final = (
    RequestSpec(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, request_body=_GROUP),
    RequestSpec(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        request_body=_GROUPS,
        body_bytes_max=_LIST_BYTES_MAX,
    ),
    RequestSpec(RequestCode.DELETE_SUBSCRIPTIONGROUP, admin.DeleteSubscriptionGroupRequestHeader),
    RequestSpec(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        admin.GetSubscriptionGroupConfigRequestHeader,
        response_body=_GROUP,
    ),
    RequestSpec(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        admin.GetAllSubscriptionGroupRequestHeader,
        admin.GetAllSubscriptionGroupResponseHeader,
        response_body=_GROUP_TABLE,
    ),
    RequestSpec(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        broker.UpdateGroupForbiddenRequestHeader,
        response_body=record_codec(bodies.GroupForbidden),
    ),
    RequestSpec(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        clients.QueryTopicConsumeByWhoRequestHeader,
        response_body=_GROUP_LIST,
    ),
    RequestSpec(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        clients.QuerySubscriptionByConsumerRequestHeader,
        response_body=_GROUP_SUBSCRIPTION,
    ),
    RequestSpec(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        clients.GetConsumerConnectionListRequestHeader,
        response_body=_CONSUMERS,
    ),
    RequestSpec(
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        clients.GetProducerConnectionListRequestHeader,
        response_body=_PRODUCERS,
    ),
    RequestSpec(
        RequestCode.GET_ALL_PRODUCER_INFO,
        clients.GetAllProducerInfoRequestHeader,
        response_body=_PRODUCER_TABLE,
    ),
    RequestSpec(
        RequestCode.GET_CONSUME_STATS,
        admin.GetConsumeStatsRequestHeader,
        response_body=_CONSUME_STATS,
    ),
    RequestSpec(
        RequestCode.GET_BROKER_CONSUME_STATS,
        broker.GetConsumeStatsInBrokerHeader,
        response_body=_CONSUME_STATS_LIST,
    ),
    RequestSpec(
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        offsets.QueryConsumeTimeSpanRequestHeader,
        response_body=_TIME_SPANS,
    ),
)

OFFSETS: Final = (
    RequestSpec(RequestCode.GET_ALL_CONSUMER_OFFSET, response_body=_OFFSET_TABLE),
    RequestSpec(RequestCode.GET_ALL_DELAY_OFFSET, response_body=_DELAY_TABLE),
    RequestSpec(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        offsets.ResetOffsetRequestHeader,
        response_body=_RESET,
    ),
    RequestSpec(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        offsets.GetConsumerStatusRequestHeader,
        response_body=_STATUS,
    ),
    RequestSpec(
        RequestCode.QUERY_CORRECTION_OFFSET,
        offsets.QueryCorrectionOffsetHeader,
        response_body=_CORRECTION,
    ),
    RequestSpec(RequestCode.CLONE_GROUP_OFFSET, offsets.CloneGroupOffsetRequestHeader),
)

BROKER: Final = (
    RequestSpec(RequestCode.UPDATE_BROKER_CONFIG, request_body=_PROPERTIES),
    RequestSpec(
        RequestCode.GET_BROKER_CONFIG,
        None,
        broker.GetBrokerConfigResponseHeader,
        response_body=_PROPERTIES,
    ),
    RequestSpec(RequestCode.GET_BROKER_RUNTIME_INFO, response_body=_KV_TABLE),
    RequestSpec(
        RequestCode.VIEW_BROKER_STATS_DATA,
        broker.ViewBrokerStatsDataRequestHeader,
        response_body=_BROKER_STATS,
    ),
    RequestSpec(
        RequestCode.QUERY_CONSUME_QUEUE,
        broker.QueryConsumeQueueRequestHeader,
        response_body=_CONSUME_QUEUE,
    ),
    RequestSpec(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
    RequestSpec(RequestCode.DELETE_EXPIRED_COMMITLOG),
    RequestSpec(RequestCode.GET_TIMER_CHECK_POINT, response_body=_CHECK_POINT),
    RequestSpec(
        RequestCode.GET_TIMER_METRICS, response_body=record_codec(bodies_timer.TimerMetrics)
    ),
    RequestSpec(
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        broker.CheckRocksdbCqWriteProgressRequestHeader,
        response_body=record_codec(bodies_timer.CheckRocksdbCqWriteResult),
    ),
    RequestSpec(
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, broker.ExportRocksDBConfigToJsonRequestHeader
    ),
    RequestSpec(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, request_body=_PROPERTIES),
    RequestSpec(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, request_body=TEXT_CODEC),
    RequestSpec(
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        response_body=record_codec(bodies_timer.ColdDataFlowCtrInfo),
    ),
    RequestSpec(RequestCode.SET_COMMITLOG_READ_MODE, broker.SetCommitLogReadModeRequestHeader),
    RequestSpec(RequestCode.SWITCH_TIMER_ENGINE, broker.SwitchTimerEngineRequestHeader),
    RequestSpec(RequestCode.ADD_BROKER, broker.AddBrokerRequestHeader, request_body=_PROPERTIES),
    RequestSpec(RequestCode.REMOVE_BROKER, broker.RemoveBrokerRequestHeader),
)

AUTH: Final = (
    RequestSpec(RequestCode.AUTH_CREATE_USER, auth.CreateUserRequestHeader, request_body=_USER),
    RequestSpec(RequestCode.AUTH_UPDATE_USER, auth.UpdateUserRequestHeader, request_body=_USER),
    RequestSpec(RequestCode.AUTH_DELETE_USER, auth.DeleteUserRequestHeader),
    RequestSpec(RequestCode.AUTH_GET_USER, auth.GetUserRequestHeader, response_body=_USER),
    RequestSpec(
        RequestCode.AUTH_LIST_USER,
        auth.ListUsersRequestHeader,
        response_body=record_list_codec(bodies_auth.UserInfo),
    ),
    RequestSpec(RequestCode.AUTH_CREATE_ACL, auth.CreateAclRequestHeader, request_body=_ACL),
    RequestSpec(RequestCode.AUTH_UPDATE_ACL, auth.UpdateAclRequestHeader, request_body=_ACL),
    RequestSpec(RequestCode.AUTH_DELETE_ACL, auth.DeleteAclRequestHeader),
    RequestSpec(RequestCode.AUTH_GET_ACL, auth.GetAclRequestHeader, response_body=_ACL),
    RequestSpec(
        RequestCode.AUTH_LIST_ACL,
        auth.ListAclsRequestHeader,
        response_body=record_list_codec(bodies_auth.AclInfo),
    ),
)
