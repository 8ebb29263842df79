"""Routes of topics, brokers of clusters, and other requests to name servers.

Broker addresses are keyed by broker id. Java writes these keys unquoted (`{0:"10.0.0.1:10911"}`),
except in a route requested by a client of version 4.9.4 or later, or with acceptStandardJsonOnly.
All decoders accept both forms. The functions are written by hand, because a route has two forms and
its numbers of queues have limits.

Source: TopicRouteData.java, ClusterInfo.java, BrokerMemberGroup.java,
GetBrokerMemberGroupResponseBody.java, and the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.namesrv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kourou.errors import MalformedBodyError
from kourou.model.route import (
    QUEUE_NUMS_MAX,
    BrokerData,
    QueueData,
    TopicRoute,
    parse_order_topic_conf,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import Int, Long, TopicHeader
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_values import (
    Json,
    as_integer,
    as_object,
    as_text,
    get_boolean,
    get_integer,
    get_list,
    get_object,
    get_optional_text,
    get_text,
    get_texts,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec, record_codec
from kourou.protocol.topics import TOPIC_LIST_CODEC


@dataclass(slots=True)
class GetRouteInfoRequestHeader(TopicHeader):
    """GET_ROUTEINFO_BY_TOPIC (105); has a response body.

    Attributes:
        topic: if it is missing, it is empty: a topic that does not exist.
        accept_standard_json_only: respond in standard JSON even to an old version.
    """

    topic: str = ""
    accept_standard_json_only: bool | None = None


@dataclass(slots=True)
class DeleteTopicFromNamesrvRequestHeader(TopicHeader):
    """DELETE_TOPIC_IN_NAMESRV (216); without a cluster name, in all clusters."""

    topic: str = ""
    cluster_name: str | None = None


@dataclass(slots=True)
class GetTopicsByClusterRequestHeader:
    """GET_TOPICS_BY_CLUSTER (224); has a response body."""

    cluster: str


@dataclass(slots=True)
class WipeWritePermOfBrokerRequestHeader:
    """WIPE_WRITE_PERM_OF_BROKER (205): remove the write permission of the broker's topics."""

    broker_name: str


@dataclass(slots=True)
class WipeWritePermOfBrokerResponseHeader:
    """The number of topics registered for the broker."""

    wipe_topic_count: Int


@dataclass(slots=True)
class AddWritePermOfBrokerRequestHeader:
    """ADD_WRITE_PERM_OF_BROKER (327): restore the write permission of the broker's topics."""

    broker_name: str


@dataclass(slots=True)
class AddWritePermOfBrokerResponseHeader:
    """The number of topics registered for the broker."""

    add_topic_count: Int


@dataclass(slots=True)
class RegisterTopicRequestHeader(TopicHeader):
    """REGISTER_TOPIC_IN_NAMESRV (217); the body is the topic's route."""

    topic: str


@dataclass(slots=True)
class GetBrokerMemberGroupRequestHeader:
    """GET_BROKER_MEMBER_GROUP (901): addresses of a broker's replicas; has a response body."""

    cluster_name: str
    broker_name: str


@dataclass(slots=True)
class NotifyMinBrokerIdChangeRequestHeader:
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), name server to brokers, one-way.

    Attributes:
        min_broker_id: the smallest id of a live replica; 0 is the master's.
        offline_broker_addr: address of the replica that went offline, if any.
        ha_broker_addr: replication address of the replica with the smallest id.
    """

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All brokers and clusters registered at a name server.

    Attributes:
        brokers: broker name to its addresses.
        clusters: cluster name to its broker names.
    """

    brokers: Mapping[str, BrokerData] = field(default_factory=dict)
    clusters: Mapping[str, Sequence[str]] = field(default_factory=dict)


def encode_topic_route(route: TopicRoute, *, standard: bool) -> bytes:
    """Return the response body of GET_ROUTEINFO_BY_TOPIC (105).

    With `standard`, broker ids are quoted; else they are bare, as versions before 4.9.4 expect.
    """
    brokers = [_broker_to_json(broker) for broker in route.broker_datas]
    if standard:
        for broker, data in zip(brokers, route.broker_datas, strict=True):
            broker["brokerAddrs"] = {str(key): addr for key, addr in data.broker_addrs.items()}
    return dumps(
        {
            "brokerDatas": brokers,
            "filterServerTable": {},
            "orderTopicConf": route.order_topic_conf,
            "queueDatas": [_queues_to_json(queues) for queues in route.queue_datas],
        }
    )


def decode_topic_route(body: bytes) -> TopicRoute:
    """Return the route decoded from a body of either form.

    Raises:
        MalformedBodyError: the body is not a JSON object, a member has the wrong type, a number of
            queues is outside 0 to `QUEUE_NUMS_MAX`, or orderTopicConf does not parse.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "route")
    order_topic_conf = get_text(data, "orderTopicConf") or None
    if order_topic_conf is not None:
        parse_order_topic_conf(order_topic_conf)
    return TopicRoute(
        tuple(
            _queues_from_json(as_object(queues, "queueDatas"))
            for queues in get_list(data, "queueDatas")
        ),
        tuple(
            _broker_from_json(as_object(broker, "brokerDatas"))
            for broker in get_list(data, "brokerDatas")
        ),
        order_topic_conf,
    )


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """Return the response body of GET_BROKER_CLUSTER_INFO (106); ids are always bare."""
    return dumps(
        {
            "brokerAddrTable": {
                name: _broker_to_json(broker) for name, broker in info.brokers.items()
            },
            "clusterAddrTable": {name: list(names) for name, names in info.clusters.items()},
        }
    )


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Return the cluster info decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "cluster info")
    clusters = get_object(data, "clusterAddrTable")
    return ClusterInfo(
        {
            name: _broker_from_json(as_object(broker, "brokerAddrTable"))
            for name, broker in get_object(data, "brokerAddrTable").items()
        },
        {name: get_texts(clusters, name) for name in clusters},
    )


def _broker_to_json(broker: BrokerData) -> dict[str, object]:
    return {
        "brokerAddrs": dict(broker.broker_addrs),
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": broker.enable_acting_master,
        "zoneName": broker.zone_name,
    }


def _broker_from_json(data: Json) -> BrokerData:
    return BrokerData(
        get_text(data, "cluster"),
        get_text(data, "brokerName"),
        {
            as_integer(broker_id, "broker id"): as_text(address, "brokerAddrs")
            for broker_id, address in get_object(data, "brokerAddrs").items()
        },
        get_boolean(data, "enableActingMaster"),
        get_optional_text(data, "zoneName"),
    )


def _queues_to_json(queues: QueueData) -> dict[str, object]:
    return {
        "brokerName": queues.broker_name,
        "perm": queues.perm,
        "readQueueNums": queues.read_queue_nums,
        "topicSysFlag": queues.topic_sys_flag,
        "writeQueueNums": queues.write_queue_nums,
    }


def _queues_from_json(data: Json) -> QueueData:
    return QueueData(
        get_text(data, "brokerName"),
        _queue_nums(data, "readQueueNums"),
        _queue_nums(data, "writeQueueNums"),
        get_integer(data, "perm"),
        get_integer(data, "topicSysFlag"),
    )


def _queue_nums(data: Json, name: str) -> int:
    nums = get_integer(data, name)
    if not 0 <= nums <= QUEUE_NUMS_MAX:
        raise MalformedBodyError(f"{name} {nums} is outside 0 to {QUEUE_NUMS_MAX}")
    return nums


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """The replicas of one broker.

    Attributes:
        broker_addrs: broker id to address; 0 is the master's.
    """

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetBrokerMemberGroupResponse:
    """Response body of GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup | None = None


_ROUTE: Final = BodyCodec(decode_topic_route, partial(encode_topic_route, standard=True))

SPECS: Final = (
    RequestSpec(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader, response_body=_ROUTE
    ),
    RequestSpec(
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RegisterTopicRequestHeader,
        request_body=_ROUTE,
        body_bytes_max=32 * 1024,
    ),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader),
    RequestSpec(
        RequestCode.GET_BROKER_CLUSTER_INFO,
        response_body=BodyCodec(decode_cluster_info, encode_cluster_info),
    ),
    RequestSpec(
        RequestCode.GET_BROKER_MEMBER_GROUP,
        GetBrokerMemberGroupRequestHeader,
        response_body=record_codec(GetBrokerMemberGroupResponse),
    ),
    RequestSpec(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        WipeWritePermOfBrokerRequestHeader,
        WipeWritePermOfBrokerResponseHeader,
    ),
    RequestSpec(
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        AddWritePermOfBrokerRequestHeader,
        AddWritePermOfBrokerResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_TOPICS_BY_CLUSTER,
        GetTopicsByClusterRequestHeader,
        response_body=TOPIC_LIST_CODEC,
    ),
    *(
        RequestSpec(code, response_body=TOPIC_LIST_CODEC)
        for code in (
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        )
    ),
    RequestSpec(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, NotifyMinBrokerIdChangeRequestHeader),
)
