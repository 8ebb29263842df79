"""Headers of the name server: codes 103 to 105, 205, 216, 217, 224, 322, 327, 901 and 904.

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
        broker_addr: `host:port` for clients; `ha_server_addr` for replicas.
        broker_id: 0 is the master.
        heartbeat_timeout_millis: forget the broker after so long a silence; None is 120,000.
        enable_acting_master: None tells of a broker older than the option.
        compressed: the body is the compressed form.
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
    """The master's addresses, for a slave; a master gets neither."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class UnregisterBrokerRequestHeader:
    """UNREGISTER_BROKER (104): the broker leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True)
class GetRouteInfoRequestHeader(TopicHeader):
    """GET_ROUTEINFO_BY_TOPIC (105); a body answers.

    Attributes:
        topic: a request without it asks for a topic that does not exist.
        accept_standard_json_only: answer in standard JSON also to an old version.
    """

    topic: str = ""
    accept_standard_json_only: bool | None = None


@dataclass(slots=True)
class QueryDataVersionRequestHeader:
    """QUERY_DATA_VERSION (322): is what the name server has of this broker still true?"""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True)
class QueryDataVersionResponseHeader:
    """Whether the version in the request's body differs from the known one."""

    changed: bool


@dataclass(slots=True)
class DeleteTopicFromNamesrvRequestHeader(TopicHeader):
    """DELETE_TOPIC_IN_NAMESRV (216); without a cluster, of all of them."""

    topic: str = ""
    cluster_name: str | None = None


@dataclass(slots=True)
class GetTopicsByClusterRequestHeader:
    """GET_TOPICS_BY_CLUSTER (224); a body answers."""

    cluster: str


@dataclass(slots=True)
class BrokerHeartbeatRequestHeader:
    """BROKER_HEARTBEAT (904): the broker lives; the rest is for a controller."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    # The wire's own spelling.
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


@dataclass(slots=True)
class WipeWritePermOfBrokerRequestHeader:
    """WIPE_WRITE_PERM_OF_BROKER (205): let nobody write to the broker's topics."""

    broker_name: str


@dataclass(slots=True)
class WipeWritePermOfBrokerResponseHeader:
    """How many topics the broker has here."""

    wipe_topic_count: Int


@dataclass(slots=True)
class AddWritePermOfBrokerRequestHeader:
    """ADD_WRITE_PERM_OF_BROKER (327): let producers write to the broker's topics again."""

    broker_name: str


@dataclass(slots=True)
class AddWritePermOfBrokerResponseHeader:
    """How many topics the broker has here."""

    add_topic_count: Int


@dataclass(slots=True)
class RegisterTopicRequestHeader(TopicHeader):
    """REGISTER_TOPIC_IN_NAMESRV (217); the body is the topic's route."""

    topic: str


@dataclass(slots=True)
class GetBrokerMemberGroupRequestHeader:
    """GET_BROKER_MEMBER_GROUP (901): the addresses of one broker's replicas; a body answers."""

    cluster_name: str
    broker_name: str
