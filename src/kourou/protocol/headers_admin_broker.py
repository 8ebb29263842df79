"""Headers for broker administration: 26, 315, 317, 321, 353 to 355, 902, 903, 2004, 5001.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import TopicHeader


@dataclass(slots=True)
class GetBrokerConfigResponseHeader:
    """Response to GET_BROKER_CONFIG (26), beside the body: a DataVersion as JSON text."""

    version: str


@dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader:
    """VIEW_BROKER_STATS_DATA (315): one counter; has a response body.

    Attributes:
        stats_name: type of the counter, such as TOPIC_PUT_NUMS.
        stats_key: the counted object, such as a topic, or `topic@group`.
    """

    stats_name: str
    stats_key: str


@dataclass(slots=True)
class GetConsumeStatsInBrokerHeader:
    """GET_BROKER_CONSUME_STATS (317): the progress of all groups; has a response body.

    Attributes:
        is_order: true selects the groups that consume in order, false the others.
    """

    is_order: bool


@dataclass(slots=True)
class QueryConsumeQueueRequestHeader(TopicHeader):
    """QUERY_CONSUME_QUEUE (321): entries of a consume queue; has a response body.

    Attributes:
        index: the first queue offset; a negative one counts from the end.
        consumer_group: the group whose filter is evaluated on the entries.
    """

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str | None = None


@dataclass(slots=True)
class UpdateGroupForbiddenRequestHeader(TopicHeader):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353): a group's read permission; has a response body.

    Attributes:
        readable: the new permission; None only queries it.
    """

    group: str
    topic: str
    readable: bool | None = None


@dataclass(slots=True)
class CheckRocksdbCqWriteProgressRequestHeader:
    """CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354); has a response body.

    Attributes:
        check_store_time: epoch milliseconds; messages stored earlier are not compared.
    """

    topic: str
    check_store_time: Long = 0


@dataclass(slots=True)
class ExportRocksDBConfigToJsonRequestHeader:
    """EXPORT_ROCKSDB_CONFIG_TO_JSON (355).

    Attributes:
        config_type: among `topics`, `subscriptionGroups` and `consumerOffsets`, joined by `;`.
    """

    config_type: str


@dataclass(slots=True)
class SetCommitLogReadModeRequestHeader:
    """SET_COMMITLOG_READ_MODE (2004); Java has no class for its one field.

    Attributes:
        read_ahead_mode: 0 enables the system's read-ahead, 1 disables it.
    """

    read_ahead_mode: str | None = field(default=None, metadata={"wire": "READ_AHEAD_MODE"})


@dataclass(slots=True)
class SwitchTimerEngineRequestHeader:
    """SWITCH_TIMER_ENGINE (5001); Java has no class for its one field.

    Attributes:
        engine_type: F for the files of the timer wheel, R for RocksDB.
    """

    engine_type: str | None = field(default=None, metadata={"wire": "E_T"})


@dataclass(slots=True)
class AddBrokerRequestHeader:
    """ADD_BROKER (902), sent to a broker container.

    Attributes:
        config_path: a file on the container's machine; None if the body is the configuration.
    """

    config_path: str | None = None


@dataclass(slots=True)
class RemoveBrokerRequestHeader:
    """REMOVE_BROKER (903), sent to a broker container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Long
