"""Headers for the name server: codes 103 to 105, 205, 216, 217, 224, 322, 327, 901 and 904.

Source: RegisterBrokerRequestHeader.java, RegisterBrokerResponseHeader.java,
UnRegisterBrokerRequestHeader.java, GetRouteInfoRequestHeader.java,
QueryDataVersionRequestHeader.java, BrokerHeartbeatRequestHeader.java,
DeleteTopicFromNamesrvRequestHeader.java, GetTopicsByClusterRequestHeader.java,
RegisterTopicRequestHeader.java, WipeWritePermOfBrokerRequestHeader.java and ResponseHeader,
AddWritePermOfBrokerRequestHeader.java and ResponseHeader, GetBrokerMemberGroupRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import TopicHeader


@dataclass(slots=True)
class RegisterBrokerRequestHeader:
    """REGISTER_BROKER (103): a broker and, in the body, its topics.

    Attributes:
        broker_addr: `host:port` for clients.
        ha_server_addr: `host:port` for replicas.
        broker_id: 0 is the master.
        heartbeat_timeout_millis: the broker is removed after this time without a heartbeat; None
            means 120,000.
        enable_acting_master: None if the broker is older than the option.
        compressed: the body is compressed.
        body_crc32: CRC-32 of the body as sent, 31 bits; 0 is not checked.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0


@dataclass(slots=True)
class RegisterBrokerResponseHeader:
    """The master's addresses in a response to a slave; both are None for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class UnregisterBrokerRequestHeader:
    """UNREGISTER_BROKER (104): the broker shuts down."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


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
class QueryDataVersionRequestHeader:
    """QUERY_DATA_VERSION (322): whether the name server has this broker's latest topic table."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True)
class QueryDataVersionResponseHeader:
    """Response: whether the version in the request's body differs from the registered one."""

    changed: bool


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
class BrokerHeartbeatRequestHeader:
    """BROKER_HEARTBEAT (904): the broker is alive; the optional fields are for a controller."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    # Misspelled on the wire.
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


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
