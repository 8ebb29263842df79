"""JSON bodies of the name server: routes, cluster info, key-value tables, topic lists.

Broker addresses are keyed by broker id. Java writes these keys unquoted (`{0:"10.0.0.1:10911"}`),
except in a route requested by a client of version 4.9.4 or later, or with acceptStandardJsonOnly.
All decoders accept both forms.

Source: TopicRouteData.java, ClusterInfo.java, RegisterBrokerBody.java, KVTable.java,
TopicList.java, DataVersion.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kourou.errors import MalformedBodyError
from kourou.model.route import (
    QUEUE_NUMS_MAX,
    BrokerData,
    QueueData,
    TopicRoute,
    parse_order_topic_conf,
)
from kourou.protocol.fastjson import dumps, loads
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
    get_text_map,
    get_texts,
)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All brokers and clusters registered at a name server.

    Attributes:
        brokers: broker name to its addresses.
        clusters: cluster name to its broker names.
    """

    brokers: Mapping[str, BrokerData] = field(default_factory=dict)
    clusters: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicList:
    """Names of topics; `broker_addr` is the address of the broker in a response to 343."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


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


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Return the body of a KVTable: response body of 28, 103 and 219."""
    return dumps({"table": dict(table)})


def decode_kv_table(body: bytes) -> dict[str, str]:
    """Return the table decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object of texts.
    """
    return get_text_map(as_object(loads(body), "table"), "table")


def encode_topic_list(topics: Sequence[str], *, broker_addr: str | None = None) -> bytes:
    """Return the body of a TopicList: response body of 206, 224, 304 and others."""
    return dumps({"brokerAddr": broker_addr, "topicList": list(topics)})


def decode_topic_list(body: bytes) -> list[str]:
    """Return the topics decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object with an array of texts.
    """
    return get_texts(as_object(loads(body), "topic list"), "topicList")


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
