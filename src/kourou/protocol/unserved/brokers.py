"""Static topics, RocksDB, cold reads, broker containers: requests to brokers.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header;
TopicQueueMappingInfo.java, TopicQueueMappingDetail.java, LogicQueueMappingItem.java,
CheckRocksdbCqWriteResult.java, ColdDataCgCtrService.java, AccAndTimeStamp.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import Long
from kourou.protocol.request_spec import PROPERTIES_CODEC, TEXT_CODEC, RequestSpec, record_codec
from kourou.protocol.topics import CreateTopicRequestHeader


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


@dataclass(frozen=True, slots=True)
class LogicQueueMappingItem:
    """One part of a logical queue.

    Offsets are queue offsets, times are epoch milliseconds; -1 means an open end.

    Attributes:
        gen: the part's number.
        logic_offset: offset of its first message in the logical queue.
    """

    gen: int = 0
    queue_id: int = 0
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


@dataclass(frozen=True, slots=True)
class TopicQueueMappingDetail:
    """The logical queues of a topic on one broker: the body of 513, and a part of that of 351.

    Attributes:
        curr_id_map: logical queue id to the broker's queue id.
        hosted_queues: logical queue id to its parts, in order.
    """

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: int = 0
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})
    epoch: int = 0
    dirty: bool = False
    curr_id_map: Mapping[int, int] | None = None
    hosted_queues: Mapping[int, tuple[LogicQueueMappingItem, ...]] | None = None


@dataclass(frozen=True, slots=True)
class CheckRocksdbCqWriteResult:
    """Response body of 354: 0 equal, 1 different, 2 in progress, 3 failed."""

    check_result: str | None = None
    check_status: int = 0


@dataclass(frozen=True, slots=True)
class ColdRead:
    """Bytes of cold (old) messages that a group read; times are in epoch milliseconds."""

    cold_acc: int = 0
    last_cold_read_time_mills: int = 0
    create_time_mills: int = 0


@dataclass(frozen=True, slots=True)
class ColdDataFlowCtrInfo:
    """Response body of GET_COLD_DATA_FLOW_CTR_INFO (2003).

    Attributes:
        runtime_table: group to its cold reads.
        config_table: group to its own limit.
        cg_cold_read_threshold: cold bytes per second that a group may read.
    """

    runtime_table: Mapping[str, ColdRead] = field(default_factory=dict)
    config_table: Mapping[str, int] = field(default_factory=dict)
    cg_cold_read_threshold: int = 0
    global_cold_read_threshold: int = 0
    global_acc: int = 0


SPECS: Final = (
    RequestSpec(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        CreateTopicRequestHeader,
        request_body=record_codec(TopicQueueMappingDetail),
    ),
    RequestSpec(
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        CheckRocksdbCqWriteProgressRequestHeader,
        response_body=record_codec(CheckRocksdbCqWriteResult),
    ),
    RequestSpec(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, ExportRocksDBConfigToJsonRequestHeader),
    RequestSpec(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, request_body=PROPERTIES_CODEC),
    RequestSpec(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, request_body=TEXT_CODEC),
    RequestSpec(
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        response_body=record_codec(ColdDataFlowCtrInfo),
    ),
    RequestSpec(RequestCode.SET_COMMITLOG_READ_MODE, SetCommitLogReadModeRequestHeader),
    RequestSpec(RequestCode.SWITCH_TIMER_ENGINE, SwitchTimerEngineRequestHeader),
    RequestSpec(RequestCode.ADD_BROKER, AddBrokerRequestHeader, request_body=PROPERTIES_CODEC),
    RequestSpec(RequestCode.REMOVE_BROKER, RemoveBrokerRequestHeader),
)
