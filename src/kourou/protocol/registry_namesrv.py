"""Specifications of the requests of name servers, controllers and replicas."""

from __future__ import annotations

from functools import partial
from typing import Final

from kourou.protocol import bodies
from kourou.protocol import bodies_replicas as replicas
from kourou.protocol import headers_controller as controller
from kourou.protocol import headers_ha as ha
from kourou.protocol import headers_kv as kv
from kourou.protocol import headers_route as route
from kourou.protocol.codes import RequestCode
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.registry_specs import BodyCodec, RequestSpec, record_codec

_PROPERTIES: Final = BodyCodec(decode_properties_text, encode_properties_text)
_REGISTRATION: Final = BodyCodec(bodies.decode_register_body, bodies.encode_register_body)
_ROUTE: Final = BodyCodec(
    bodies.decode_topic_route, partial(bodies.encode_topic_route, standard=True)
)
_CLUSTER: Final = BodyCodec(bodies.decode_cluster_info, bodies.encode_cluster_info)
_KV_TABLE: Final = BodyCodec(bodies.decode_kv_table, bodies.encode_kv_table)
_TOPIC_LIST: Final = record_codec(bodies.TopicList)
_VERSION: Final = BodyCodec(bodies.decode_data_version, bodies.encode_data_version)
_BROKER_NAMES: Final = BodyCodec(replicas.decode_broker_names, replicas.encode_broker_names)
_SYNC_STATE: Final = record_codec(replicas.SyncStateSet)

NAMESRV: Final = (
    RequestSpec(RequestCode.PUT_KV_CONFIG, kv.PutKVConfigRequestHeader),
    RequestSpec(
        RequestCode.GET_KV_CONFIG, kv.GetKVConfigRequestHeader, kv.GetKVConfigResponseHeader
    ),
    RequestSpec(RequestCode.DELETE_KV_CONFIG, kv.DeleteKVConfigRequestHeader),
    RequestSpec(
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        kv.GetKVListByNamespaceRequestHeader,
        response_body=_KV_TABLE,
    ),
    RequestSpec(
        RequestCode.REGISTER_BROKER,
        route.RegisterBrokerRequestHeader,
        route.RegisterBrokerResponseHeader,
        _REGISTRATION,
        _KV_TABLE,
        body_bytes_max=FRAME_SIZE_MAX,  # contains all topics of a broker
    ),
    RequestSpec(RequestCode.UNREGISTER_BROKER, route.UnregisterBrokerRequestHeader),
    RequestSpec(RequestCode.BROKER_HEARTBEAT, route.BrokerHeartbeatRequestHeader),
    RequestSpec(
        RequestCode.QUERY_DATA_VERSION,
        route.QueryDataVersionRequestHeader,
        route.QueryDataVersionResponseHeader,
        _VERSION,
        _VERSION,
    ),
    RequestSpec(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, route.GetRouteInfoRequestHeader, response_body=_ROUTE
    ),
    RequestSpec(
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        route.RegisterTopicRequestHeader,
        request_body=_ROUTE,
        body_bytes_max=32 * 1024,
    ),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_NAMESRV, route.DeleteTopicFromNamesrvRequestHeader),
    RequestSpec(RequestCode.GET_BROKER_CLUSTER_INFO, response_body=_CLUSTER),
    RequestSpec(
        RequestCode.GET_BROKER_MEMBER_GROUP,
        route.GetBrokerMemberGroupRequestHeader,
        response_body=record_codec(replicas.GetBrokerMemberGroupResponse),
    ),
    RequestSpec(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        route.WipeWritePermOfBrokerRequestHeader,
        route.WipeWritePermOfBrokerResponseHeader,
    ),
    RequestSpec(
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        route.AddWritePermOfBrokerRequestHeader,
        route.AddWritePermOfBrokerResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_TOPICS_BY_CLUSTER,
        route.GetTopicsByClusterRequestHeader,
        response_body=_TOPIC_LIST,
    ),
    *(
        RequestSpec(code, response_body=_TOPIC_LIST)
        for code in (
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        )
    ),
    RequestSpec(RequestCode.UPDATE_NAMESRV_CONFIG, request_body=_PROPERTIES),
    RequestSpec(RequestCode.GET_NAMESRV_CONFIG, response_body=_PROPERTIES),
)

REPLICAS: Final = (
    RequestSpec(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ha.NotifyMinBrokerIdChangeRequestHeader),
    RequestSpec(
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        ha.ExchangeHAInfoRequestHeader,
        ha.ExchangeHAInfoResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_BROKER_HA_STATUS, response_body=record_codec(replicas.HARuntimeInfo)
    ),
    RequestSpec(RequestCode.RESET_MASTER_FLUSH_OFFSET, ha.ResetMasterFlushOffsetHeader),
    RequestSpec(
        RequestCode.GET_BROKER_EPOCH_CACHE, response_body=record_codec(replicas.EpochEntryCache)
    ),
    RequestSpec(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        ha.NotifyBrokerRoleChangedRequestHeader,
        request_body=_SYNC_STATE,
    ),
)

CONTROLLER: Final = (
    RequestSpec(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        controller.AlterSyncStateSetRequestHeader,
        controller.AlterSyncStateSetResponseHeader,
        _SYNC_STATE,
        _SYNC_STATE,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_ELECT_MASTER,
        controller.ElectMasterRequestHeader,
        controller.ElectMasterResponseHeader,
        response_body=record_codec(replicas.ElectMasterResponse),
    ),
    RequestSpec(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        controller.RegisterBrokerToControllerRequestHeader,
        controller.RegisterBrokerToControllerResponseHeader,
        response_body=_SYNC_STATE,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        controller.GetReplicaInfoRequestHeader,
        controller.GetReplicaInfoResponseHeader,
        response_body=_SYNC_STATE,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_GET_METADATA_INFO, None, controller.GetMetaDataResponseHeader
    ),
    RequestSpec(
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        request_body=_BROKER_NAMES,
        response_body=record_codec(replicas.BrokerReplicasInfo),
    ),
    RequestSpec(RequestCode.UPDATE_CONTROLLER_CONFIG, request_body=_PROPERTIES),
    RequestSpec(RequestCode.GET_CONTROLLER_CONFIG, response_body=_PROPERTIES),
    RequestSpec(RequestCode.CLEAN_BROKER_DATA, controller.CleanControllerBrokerDataRequestHeader),
    RequestSpec(
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        controller.GetNextBrokerIdRequestHeader,
        controller.GetNextBrokerIdResponseHeader,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        controller.ApplyBrokerIdRequestHeader,
        controller.ApplyBrokerIdResponseHeader,
    ),
)
