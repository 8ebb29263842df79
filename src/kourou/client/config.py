"""Settings of the clients: one frozen dataclass each, checked when it is made.

A field's metadata names RocketMQ's own setting where it has one. Durations end in `_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.client.rebalance import STRATEGIES
from kourou.errors import ConfigError, InvalidMessageError
from kourou.model.group import ConsumeFromWhere
from kourou.model.host import pack_address
from kourou.remoting.limits import ConnectionLimits

MIB: Final = 1024 * 1024

BODY_SIZE_LIMIT_BYTES: Final = 15 * MIB
"""No frame is larger than 16 MiB, and a message's properties and header need some of it."""

_START_POINTS: Final = (
    ConsumeFromWhere.LAST_OFFSET,
    ConsumeFromWhere.FIRST_OFFSET,
    ConsumeFromWhere.TIMESTAMP,
)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What all clients have in common.

    Raises:
        ConfigError: a value is out of its range; the text names the field, value and range.
    """

    instance_name: str | None = field(default=None, metadata={"key": "instanceName"})
    """Makes the client id `ip@instance_name`, the same after a restart. None: one that no other
    client has. Two push consumers of one group in one process must have two names."""

    client_ip: str | None = field(default=None, metadata={"key": "clientIP"})
    """The address in client and message ids. None: that of the interface with the default route."""

    request_timeout_ms: int = field(default=3_000, metadata={"key": "mqClientApiTimeout"})
    """Time in ms for requests that have no timeout of their own: routes, heartbeats, offsets."""

    route_refresh_interval_ms: int = field(
        default=30_000, metadata={"key": "pollNameServerInterval"}
    )
    """Time in ms between two looks at the routes of all topics in use."""

    heartbeat_interval_ms: int = field(default=30_000, metadata={"key": "heartbeatBrokerInterval"})
    """Time in ms between heartbeats; brokers forget a client after 120 s without one."""

    retry_backoff_min_ms: int = 50
    """Time in ms before a failed request is tried again; doubled each time, with jitter."""

    retry_backoff_max_ms: int = 500
    """Longest time in ms between two tries."""

    routes_max: int = 10_000
    """Topics whose routes are kept; the one unused for the longest time is forgotten first."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Bounds of each connection."""

    def __post_init__(self) -> None:
        for name in ("request_timeout_ms", "route_refresh_interval_ms", "heartbeat_interval_ms"):
            _check_range(self, name, 1, 3_600_000)
        _check_range(self, "retry_backoff_min_ms", 1, 60_000)
        _check_range(self, "retry_backoff_max_ms", self.retry_backoff_min_ms, 600_000)
        _check_range(self, "routes_max", 1, 1_000_000)
        if self.instance_name is not None and not self.instance_name.strip():
            raise ConfigError("instance_name is blank; leave it out for one of its own")
        if self.client_ip is not None:
            try:
                pack_address(self.client_ip)
            except InvalidMessageError as error:
                raise ConfigError(f"client_ip: {error}") from None


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a `Producer`."""

    send_timeout_ms: int = field(default=3_000, metadata={"key": "sendMsgTimeout"})
    """Time in ms for one message, all its tries and the waits between them included."""

    attempt_timeout_ms: int | None = field(
        default=None, metadata={"key": "sendMsgMaxTimeoutPerRequest"}
    )
    """Time in ms for one try. None: what is left for the message. A value below send_timeout_ms
    leaves time for another broker when one is silent, at the price of more duplicates."""

    refused_attempts_max: int = field(default=3, metadata={"key": "retryTimesWhenSendFailed"})
    """Tries of a message that brokers refuse for the topic's permission or absence, each after a
    look at the route. Failures that pass by themselves are retried until the timeout instead."""

    max_message_size_bytes: int = field(default=4 * MIB, metadata={"key": "maxMessageSize"})
    """Largest body in bytes, before compression. Brokers have such a limit too."""

    compress_body_over_bytes: int | None = field(
        default=4_096, metadata={"key": "compressMsgBodyOverHowmuch"}
    )
    """Bodies of at least this many bytes are compressed by zlib. None: never."""

    compress_level: int = field(default=5, metadata={"key": "compressLevel"})
    """zlib's effort, 1 to 9."""

    in_flight_messages_max: int = field(
        default=1_024, metadata={"key": "backPressureForAsyncSendNum"}
    )
    """Messages handed to `submit` and not answered; `submit` waits when there are more."""

    in_flight_bytes_max: int = field(
        default=100 * MIB, metadata={"key": "backPressureForAsyncSendSize"}
    )
    """Bytes of their bodies; a single larger message goes alone."""

    auto_create_topic: bool = True
    """A topic without a route is sent to the brokers that create topics by themselves."""

    default_topic_queue_nums: int = field(default=4, metadata={"key": "defaultTopicQueueNums"})
    """Queues on each broker of a topic that is created in this way; brokers cap it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self, "send_timeout_ms", 1, 3_600_000)
        if self.attempt_timeout_ms is not None:
            _check_range(self, "attempt_timeout_ms", 1, self.send_timeout_ms)
        _check_range(self, "refused_attempts_max", 1, 100)
        _check_range(self, "max_message_size_bytes", 1, BODY_SIZE_LIMIT_BYTES)
        if self.compress_body_over_bytes is not None:
            _check_range(self, "compress_body_over_bytes", 1, BODY_SIZE_LIMIT_BYTES)
        _check_range(self, "compress_level", 1, 9)
        _check_range(self, "in_flight_messages_max", 1, 65_535)
        _check_range(self, "in_flight_bytes_max", 1, 16 * 1024 * MIB)
        _check_range(self, "default_topic_queue_nums", 1, 1_024)


@dataclass(frozen=True, kw_only=True)
class PullConsumerConfig(ClientConfig):
    """Settings of a `PullConsumer`."""

    pull_timeout_ms: int = field(default=10_000, metadata={"key": "consumerPullTimeoutMillis"})
    """Time in ms for one pull, all its tries included; with `pull_or_wait` beyond its wait."""

    wait_ms: int = field(default=20_000, metadata={"key": "brokerSuspendMaxTimeMillis"})
    """Time in ms that a broker holds a `pull_or_wait` which finds nothing."""

    pull_bytes_max: int = field(default=2**31 - 1, metadata={"key": "pullBatchSizeInBytes"})
    """Bytes asked for at most by one pull. Brokers have a limit of their own, mostly 256 KiB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self, "pull_timeout_ms", 1, 3_600_000)
        _check_range(self, "wait_ms", 1, 3_600_000)
        _check_range(self, "pull_bytes_max", 1, 2**31 - 1)


@dataclass(frozen=True, kw_only=True)
class PushConsumerConfig(ClientConfig):
    """Settings of a `PushConsumer`."""

    consume_from_where: ConsumeFromWhere = field(
        default=ConsumeFromWhere.LAST_OFFSET, metadata={"key": "consumeFromWhere"}
    )
    """Where a group starts in a queue for which it has no committed offset."""

    consume_timestamp_ms: int | None = field(default=None, metadata={"key": "consumeTimestamp"})
    """Epoch milliseconds for ConsumeFromWhere.TIMESTAMP. None: half an hour before the start."""

    allocation: str = field(default="AVG", metadata={"key": "allocateMessageQueueStrategy"})
    """How queues are divided: AVG or AVG_BY_CIRCLE. The same for all members of a group."""

    rebalance_interval_ms: int = 20_000
    """Time in ms between two looks at who consumes what. Brokers also tell of changes at once."""

    rebalance_retry_min_ms: int = 1_000
    """Time in ms to the next look when one changed something or failed; doubled while it fails."""

    consume_threads: int = field(default=20, metadata={"key": "consumeThreadMax"})
    """Messages given to listeners at a time, and threads for listeners that are plain functions."""

    consume_timeout_ms: int = field(default=900_000, metadata={"key": "consumeTimeout"})
    """Time in ms that a listener may take. Checked once in this time: then the message is sent back
    for another delivery, and what the listener says later counts no more."""

    pull_batch_size: int = field(default=32, metadata={"key": "pullBatchSize"})
    """Messages asked for at most by one pull."""

    pull_batch_bytes: int = field(default=262_144, metadata={"key": "pullBatchSizeInBytes"})
    """Bytes asked for at most by one pull. Brokers have a limit of their own."""

    pull_interval_ms: int = field(default=0, metadata={"key": "pullInterval"})
    """Time in ms between two pulls of a queue that has messages."""

    pull_suspend_timeout_ms: int = 15_000
    """Time in ms that a broker holds a pull which finds nothing."""

    pull_timeout_ms: int = 30_000
    """Time in ms for a pull, its suspension included."""

    pull_error_delay_ms: int = field(
        default=1_000, metadata={"key": "pullTimeDelayMillsWhenException"}
    )
    """Time in ms before a failed pull is tried again."""

    flow_control_delay_ms: int = 50
    """Time in ms before a queue that holds too much is looked at again."""

    pull_threshold_count: int = field(default=1_000, metadata={"key": "pullThresholdForQueue"})
    """Messages held of one queue; above it, that queue is not pulled."""

    pull_threshold_size_bytes: int = field(
        default=100 * MIB, metadata={"key": "pullThresholdSizeForQueue"}
    )
    """Bytes of bodies held of one queue; above it, that queue is not pulled."""

    consume_max_span: int = field(default=2_000, metadata={"key": "consumeConcurrentlyMaxSpan"})
    """Distance between the first and last offset held of one queue; above it, that queue is not
    pulled. It bounds how much a crash delivers again behind a message that never ends."""

    max_reconsume_times: int | None = field(default=None, metadata={"key": "maxReconsumeTimes"})
    """Deliveries again of a failed message before the broker puts it into `%DLQ%group`. None: the
    group's own retryMaxTimes, which is 16 unless an administrator set another."""

    send_back_timeout_ms: int = 5_000
    """Time in ms for giving a failed message back to its broker."""

    local_retry_delay_ms: int = 5_000
    """Time in ms before a message that could not be given back is delivered again from memory."""

    persist_offset_interval_ms: int = field(
        default=5_000, metadata={"key": "persistConsumerOffsetInterval"}
    )
    """Time in ms between two commits of what is done. A crash repeats up to this much."""

    shutdown_timeout_ms: int = field(
        default=10_000, metadata={"key": "awaitTerminationMillisWhenShutdown"}
    )
    """Time in ms that running listeners get to end at `close`; their messages are then delivered
    again to somebody else. Threads cannot be stopped: the function runs on, its result unheard."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consume_from_where not in _START_POINTS:
            allowed = ", ".join(point.value for point in _START_POINTS)
            raise ConfigError(f"consume_from_where is {self.consume_from_where}: one of {allowed}")
        if self.allocation not in STRATEGIES:
            allowed = ", ".join(STRATEGIES)
            raise ConfigError(f"allocation is {self.allocation}: one of {allowed}")
        if self.consume_timestamp_ms is not None and self.consume_timestamp_ms < 0:
            raise ConfigError(f"consume_timestamp_ms is {self.consume_timestamp_ms}: not negative")
        for name, low, high in _PUSH_RANGES:
            _check_range(self, name, low, high)
        if self.max_reconsume_times is not None:
            _check_range(self, "max_reconsume_times", 0, 2**31 - 1)
        if self.pull_timeout_ms <= self.pull_suspend_timeout_ms:
            raise ConfigError(
                f"pull_timeout_ms is {self.pull_timeout_ms}: must be above "
                f"pull_suspend_timeout_ms, {self.pull_suspend_timeout_ms}"
            )


_PUSH_RANGES: Final = (
    ("rebalance_interval_ms", 1, 3_600_000),
    ("rebalance_retry_min_ms", 1, 3_600_000),
    ("consume_threads", 1, 1_000),
    ("consume_timeout_ms", 1, 7 * 86_400_000),
    ("pull_batch_size", 1, 1_024),
    ("pull_batch_bytes", 1, 2**31 - 1),
    ("pull_interval_ms", 0, 65_535),
    ("pull_suspend_timeout_ms", 1, 3_600_000),
    ("pull_timeout_ms", 1, 7_200_000),
    ("pull_error_delay_ms", 1, 3_600_000),
    ("flow_control_delay_ms", 1, 60_000),
    ("pull_threshold_count", 1, 65_535),
    ("pull_threshold_size_bytes", 1, 1_024 * MIB),
    ("consume_max_span", 1, 65_535),
    ("send_back_timeout_ms", 1, 3_600_000),
    ("local_retry_delay_ms", 1, 3_600_000),
    ("persist_offset_interval_ms", 1, 3_600_000),
    ("shutdown_timeout_ms", 0, 3_600_000),
)
"""Field, lowest and highest value; RocketMQ's own ranges where it has them."""


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of an `AdminClient`."""

    admin_timeout_ms: int = 6_000
    """Time in ms for one request to one server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self, "admin_timeout_ms", 1, 3_600_000)


def _check_range(config: ClientConfig, name: str, low: int, high: int) -> None:
    """Refuse a value of the field `name` outside `low` to `high`."""
    value = getattr(config, name)
    if not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}: allowed are {low} to {high}")
