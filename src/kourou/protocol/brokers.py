"""State of a broker: options, runtime info, entries of a consume queue, timer, replication.

Source: QueryConsumeQueueResponseBody.java, ConsumeQueueData.java, TimerCheckpoint.java,
TimerMetrics.java, HARuntimeInfo.java, and the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import MalformedBodyError
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode
from kourou.protocol.data_version import DataVersion
from kourou.protocol.fields import Int, Long, TopicHeader
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import record_functions
from kourou.protocol.kv_config import KV_TABLE_CODEC
from kourou.protocol.request_spec import PROPERTIES_CODEC, BodyCodec, RequestSpec, record_codec

_CHECK_POINT: Final = struct.Struct(">7q")

UNWRITABLE_KEY: Final = "kourouUnwritable"
"""Kourou's own key of the runtime information: why the store accepts no messages, if so."""


@dataclass(slots=True)
class GetBrokerConfigResponseHeader:
    """Response to GET_BROKER_CONFIG (26), beside the body: a DataVersion as JSON text."""

    version: str


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


@dataclass(frozen=True, slots=True)
class ConsumeQueueData:
    """One entry of a consume queue.

    Attributes:
        physic_offset: the record's physical offset.
        physic_size: the record's size in bytes.
        extend_data_json: data of the entry's extension, which exists for bit map filters only.
        eval: whether the entry passes the filter.
        msg: the reason why the message could not be read for the filter.
        visible_at_ms: when the group of the request gets it again, in epoch ms; None if it is not
            in flight. Set by Kourou's brokers, ignored by RocketMQ's clients.
    """

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None
    visible_at_ms: int | None = field(default=None, metadata={"wire": "kourouVisibleAt"})


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponse:
    """Entries of a consume queue.

    Attributes:
        min_queue_index: the smallest queue offset.
        max_queue_index: the queue offset of the next message to be stored.
        subscription: that of the group in the request, if it is connected.
        filter_data: the group's filter as text, or the reason why it has none.
    """

    queue_data: tuple[ConsumeQueueData, ...] = ()
    max_queue_index: int = 0
    min_queue_index: int = 0
    subscription: SubscriptionData | None = field(
        default=None, metadata={"wire": "subscriptionData"}
    )
    filter_data: str | None = None


decode_consume_queue, encode_consume_queue = record_functions(
    QueryConsumeQueueResponse, "consume queue", bare_keys_bytes_max=FRAME_SIZE_MAX
)


@dataclass(frozen=True, slots=True)
class TimerCheckPoint:
    """Progress of the timer: the response body of GET_TIMER_CHECK_POINT (60), 56 bytes.

    Attributes:
        last_read_time_ms: time up to which messages were delivered, in epoch milliseconds.
        last_timer_log_flush_pos: durable bytes of the timer log.
        last_timer_queue_offset: queue offset of the next message to load from the timer topic.
        master_timer_queue_offset: the same on the master.
    """

    last_read_time_ms: int = 0
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class TimerMetric:
    """Number of a topic's scheduled messages; `time_stamp` is its last change, epoch ms."""

    count: int = 0
    time_stamp: int = 0


@dataclass(frozen=True, slots=True)
class TimerMetrics:
    """Response body of GET_TIMER_METRICS (61), by topic."""

    data_version: DataVersion | None = None
    timing_count: Mapping[str, TimerMetric] = field(default_factory=dict)


def encode_timer_check_point(check_point: TimerCheckPoint) -> bytes:
    """Return the response body of GET_TIMER_CHECK_POINT (60)."""
    version = check_point.data_version
    return _CHECK_POINT.pack(
        check_point.last_read_time_ms,
        check_point.last_timer_log_flush_pos,
        check_point.last_timer_queue_offset,
        check_point.master_timer_queue_offset,
        version.state_version,
        version.timestamp,
        version.counter,
    )


def decode_timer_check_point(body: bytes) -> TimerCheckPoint:
    """Return the check point decoded from a body.

    Raises:
        MalformedBodyError: the body is not 56 bytes long.
    """
    if len(body) != _CHECK_POINT.size:
        raise MalformedBodyError(f"a timer check point has 56 bytes, not {len(body)}")
    read_at, flushed, queue_offset, master, state, timestamp, counter = _CHECK_POINT.unpack(body)
    version = DataVersion(counter, state, timestamp)
    return TimerCheckPoint(read_at, flushed, queue_offset, master, version)


@dataclass(frozen=True, slots=True)
class HAClientRuntimeInfo:
    """Replication state of a slave; times are in epoch milliseconds, offsets are physical."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo:
    """State of a master's replication to one slave.

    Attributes:
        diff: lag of the slave in bytes.
    """

    addr: str | None = None
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(frozen=True, slots=True)
class HARuntimeInfo:
    """Response body of GET_BROKER_HA_STATUS (907).

    Attributes:
        kourou_failsafe: Kourou's own field: whether the members of its set confirm the master,
            because no controller answers; None if not.
    """

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo = HAClientRuntimeInfo()
    kourou_failsafe: bool | None = None


@dataclass(slots=True)
class ExchangeHAInfoRequestHeader:
    """EXCHANGE_BROKER_HA_INFO (906): a replica sends or queries the master's addresses.

    Attributes:
        master_ha_address: None to query.
        kourou_failsafe_epoch: Kourou's own field: the epoch of a master that asks a member of its
            in-sync set to confirm it; None if it does not.
        kourou_failsafe_member: Kourou's own field: the member that is asked, `<broker name>#<id>`.
        kourou_failsafe_ms: Kourou's own field: for how long the member must not become master.
    """

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None
    kourou_failsafe_epoch: Int | None = None
    kourou_failsafe_member: str | None = None
    kourou_failsafe_ms: Int | None = None


@dataclass(slots=True)
class ExchangeHAInfoResponseHeader:
    """The addresses of the responding broker; empty unless it is the master and was queried.

    Attributes:
        kourou_failsafe_epoch: Kourou's own field: the epoch whose master is confirmed; None if it
            is not.
    """

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None
    kourou_failsafe_epoch: Int | None = None


@dataclass(frozen=True, slots=True)
class KeptAck:
    """Acknowledged messages of one checkpoint, in the body of a response to 906; Kourou's own.

    Attributes:
        topic to pop_time: of the checkpoint of a pop by the master.
        revive_queue: its queue of the revive topic.
        revive_at: time at which its messages become visible again, in epoch milliseconds.
        offsets: queue offsets of the messages.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time: int
    revive_queue: int
    revive_at: int
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptAcks:
    """Body of a response to 906 by a slave that has acted for the master that returns.

    Attributes:
        kourou_acks: Kourou's own: acks of the master's pops.
    """

    kourou_acks: tuple[KeptAck, ...] = ()


@dataclass(slots=True)
class ResetMasterFlushOffsetHeader:
    """RESET_MASTER_FLUSH_OFFSET (908): the physical offset up to which the master is durable."""

    master_flush_offset: Long | None = None


SPECS: Final = (
    RequestSpec(RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetHeader),
    RequestSpec(
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        ExchangeHAInfoRequestHeader,
        ExchangeHAInfoResponseHeader,
    ),
    RequestSpec(RequestCode.UPDATE_BROKER_CONFIG, request_body=PROPERTIES_CODEC),
    RequestSpec(
        RequestCode.GET_BROKER_CONFIG,
        None,
        GetBrokerConfigResponseHeader,
        response_body=PROPERTIES_CODEC,
    ),
    RequestSpec(RequestCode.GET_BROKER_RUNTIME_INFO, response_body=KV_TABLE_CODEC),
    RequestSpec(
        RequestCode.QUERY_CONSUME_QUEUE,
        QueryConsumeQueueRequestHeader,
        response_body=BodyCodec(decode_consume_queue, encode_consume_queue),
    ),
    RequestSpec(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
    RequestSpec(RequestCode.DELETE_EXPIRED_COMMITLOG),
    RequestSpec(
        RequestCode.GET_TIMER_CHECK_POINT,
        response_body=BodyCodec(decode_timer_check_point, encode_timer_check_point),
    ),
    RequestSpec(RequestCode.GET_TIMER_METRICS, response_body=record_codec(TimerMetrics)),
    RequestSpec(RequestCode.GET_BROKER_HA_STATUS, response_body=record_codec(HARuntimeInfo)),
)
