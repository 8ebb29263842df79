"""Headers of administration of a broker: 26, 315, 317, 321, 353 to 355, 902, 903, 2004, 5001.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import TopicHeader


@dataclass(slots=True)
class GetBrokerConfigResponseHeader:
    """What answers GET_BROKER_CONFIG (26) beside the body: a DataVersion as JSON text."""

    version: str


@dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader:
    """VIEW_BROKER_STATS_DATA (315): one counter of one kind; a body answers.

    Attributes:
        stats_name: such as TOPIC_PUT_NUMS.
        stats_key: such as a topic, or `topic@group`.
    """

    stats_name: str
    stats_key: str


@dataclass(slots=True)
class GetConsumeStatsInBrokerHeader:
    """GET_BROKER_CONSUME_STATS (317): where all groups stand; a body answers.

    Attributes:
        is_order: only the groups that consume in order, or only the others.
    """

    is_order: bool


@dataclass(slots=True)
class QueryConsumeQueueRequestHeader(TopicHeader):
    """QUERY_CONSUME_QUEUE (321): entries of a consume queue; a body answers.

    Attributes:
        index: the first queue offset; negative counts from the end.
        consumer_group: whose filter is tried on the entries.
    """

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str | None = None


@dataclass(slots=True)
class UpdateGroupForbiddenRequestHeader(TopicHeader):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353): may the group read the topic; a body answers.

    Attributes:
        readable: None changes nothing.
    """

    group: str
    topic: str
    readable: bool | None = None


@dataclass(slots=True)
class CheckRocksdbCqWriteProgressRequestHeader:
    """CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354); a body answers.

    Attributes:
        check_store_time: epoch milliseconds; messages stored before are not compared.
    """

    topic: str
    check_store_time: Long = 0


@dataclass(slots=True)
class ExportRocksDBConfigToJsonRequestHeader:
    """EXPORT_ROCKSDB_CONFIG_TO_JSON (355).

    Attributes:
        config_type: of `topics`, `subscriptionGroups` and `consumerOffsets`, joined by `;`.
    """

    config_type: str


@dataclass(slots=True)
class SetCommitLogReadModeRequestHeader:
    """SET_COMMITLOG_READ_MODE (2004); Java has no class for its one field.

    Attributes:
        read_ahead_mode: 0 the system reads ahead, 1 it does not.
    """

    read_ahead_mode: str | None = field(default=None, metadata={"wire": "READ_AHEAD_MODE"})


@dataclass(slots=True)
class SwitchTimerEngineRequestHeader:
    """SWITCH_TIMER_ENGINE (5001); Java has no class for its one field.

    Attributes:
        engine_type: F the wheel's files, R RocksDB.
    """

    engine_type: str | None = field(default=None, metadata={"wire": "E_T"})


@dataclass(slots=True)
class AddBrokerRequestHeader:
    """ADD_BROKER (902), to a container of brokers.

    Attributes:
        config_path: a file of the container's; None if the body is the configuration.
    """

    config_path: str | None = None


@dataclass(slots=True)
class RemoveBrokerRequestHeader:
    """REMOVE_BROKER (903), to a container of brokers."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Long
