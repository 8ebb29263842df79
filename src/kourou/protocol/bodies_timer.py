"""Bodies of the timer and of reading old messages: 60, 61, 354 and 2003.

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
    """How far the timer has come: the answer to GET_TIMER_CHECK_POINT (60), 56 bytes.

    Attributes:
        last_read_time_ms: epoch milliseconds up to which it delivered.
        last_timer_log_flush_pos: bytes of its log that are on the disk.
        last_timer_queue_offset: the next message to take in; the master's beside it.
    """

    last_read_time_ms: int = 0
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class TimerMetric:
    """How many messages of a topic wait; `time_stamp` is of the last change, epoch milliseconds."""

    count: int = 0
    time_stamp: int = 0


@dataclass(frozen=True, slots=True)
class TimerMetrics:
    """The body that answers GET_TIMER_METRICS (61), by topic."""

    data_version: DataVersion | None = None
    timing_count: Mapping[str, TimerMetric] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckRocksdbCqWriteResult:
    """The body that answers 354: 0 equal, 1 different, 2 in progress, 3 failed."""

    check_result: str | None = None
    check_status: int = 0


@dataclass(frozen=True, slots=True)
class ColdRead:
    """Bytes that a group read of old messages; times are epoch milliseconds."""

    cold_acc: int = 0
    last_cold_read_time_mills: int = 0
    create_time_mills: int = 0


@dataclass(frozen=True, slots=True)
class ColdDataFlowCtrInfo:
    """The body that answers GET_COLD_DATA_FLOW_CTR_INFO (2003).

    Attributes:
        runtime_table: what each group read of old messages; `config_table`, its own limit.
        cg_cold_read_threshold: bytes a second that a group may read of them.
    """

    runtime_table: Mapping[str, ColdRead] = field(default_factory=dict)
    config_table: Mapping[str, int] = field(default_factory=dict)
    cg_cold_read_threshold: int = 0
    global_cold_read_threshold: int = 0
    global_acc: int = 0


def encode_timer_check_point(check_point: TimerCheckPoint) -> bytes:
    """Return the body that answers GET_TIMER_CHECK_POINT (60)."""
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
    """Return the check point of a body.

    Raises:
        MalformedBodyError: it has not 56 bytes.
    """
    if len(body) != _CHECK_POINT.size:
        raise MalformedBodyError(f"a timer check point has 56 bytes, not {len(body)}")
    read_at, flushed, queue_offset, master, state, timestamp, counter = _CHECK_POINT.unpack(body)
    version = DataVersion(counter, state, timestamp)
    return TimerCheckPoint(read_at, flushed, queue_offset, master, version)
