"""Bodies of the timer, of a consume queue check and of cold reads: 60, 61, 354 and 2003.

Source: TimerCheckpoint.java, TimerMetrics.java, CheckRocksdbCqWriteResult.java,
ColdDataCgCtrService.java, AccAndTimeStamp.java.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import MalformedBodyError
from kourou.protocol.bodies_topics import DataVersion

_CHECK_POINT: Final = struct.Struct(">7q")


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
