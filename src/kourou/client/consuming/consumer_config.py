"""Settings of consumers: frozen dataclasses, validated on construction.

A field's metadata names RocketMQ's own setting if there is one. Durations end in `_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypedDict, TypeVar, get_args

from kourou.client.config import MIB, ClientConfig, check_range
from kourou.client.consuming.strategies import find_strategy
from kourou.documented import documented
from kourou.errors import ConfigError, UsageError
from kourou.model.allocation import Allocate
from kourou.model.group import ConsumeFromWhere, MessageModel
from kourou.model.message import MessageExt

MessageFilter = Callable[[Sequence[MessageExt]], Iterable[MessageExt]]
"""Returns the messages to consume out of messages of one queue; called on the event loop."""

_START_POINTS: Final = (
    ConsumeFromWhere.LAST_OFFSET,
    ConsumeFromWhere.FIRST_OFFSET,
    ConsumeFromWhere.TIMESTAMP,
)

SERVER_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")
"""The allocation strategies that brokers support."""

_MODELS: Final = (MessageModel.CLUSTERING, MessageModel.BROADCASTING)


ConsumeMode = Literal["pull", "pop"]
"""How messages are read: from assigned queues, or from the brokers' choice of messages."""

_MODES: Final = get_args(ConsumeMode)

Start = Literal["earliest", "latest"] | datetime
"""Start position of a group in a queue for which it has no committed offset."""

INVISIBLE_RANGE_MS: Final = (1_000, 30 * 86_400_000)
"""Shortest and longest invisible time of a receive in ms; brokers count it in seconds."""

ConfigT = TypeVar("ConfigT", bound="ConsumerConfig")


@documented
@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings that push and pull consumers share."""

    consume_from_where: ConsumeFromWhere = field(
        default=ConsumeFromWhere.LAST_OFFSET, metadata={"key": "consumeFromWhere"}
    )
    """Start position of a group in a queue for which it has no committed offset."""

    consume_timestamp_ms: int | None = field(default=None, metadata={"key": "consumeTimestamp"})
    """Epoch milliseconds for ConsumeFromWhere.TIMESTAMP. None: half an hour before the start."""

    allocation: str | Allocate = field(
        default="AVG", metadata={"key": "allocateMessageQueueStrategy"}
    )
    """Allocation strategy; must be the same for all members of a group. The name AVG, AVG_BY_CIRCLE
    or CONSISTENT_HASH; a strategy object such as `MachineRooms(...)`; `ConfiguredQueues(...)` for
    queues of this member only; or a function (sorted queues, sorted client ids, own id) -> own
    queues."""

    rebalance_interval_ms: int = 20_000
    """Time in ms between two rebalance passes. Brokers also notify members of changes at once."""

    rebalance_retry_min_ms: int = 1_000
    """Time in ms to the next rebalance pass after one that changed something or failed; doubled
    each time until a pass does neither."""

    message_filter: MessageFilter | None = None
    """Selects the messages of a pull to consume; the others count as done. Applied after the
    subscription's filter. If it raises, that is logged and all messages are consumed."""

    pull_error_delay_ms: int = field(
        default=1_000, metadata={"key": "pullTimeDelayMillsWhenException"}
    )
    """Time in ms before a failed pull is retried. The first retries are sooner if another broker
    may have taken the queue over."""

    flow_control_delay_ms: int = 50
    """Time in ms before a queue above one of its limits is checked again."""

    pull_threshold_count: int = field(default=1_000, metadata={"key": "pullThresholdForQueue"})
    """Messages held of one queue above which the queue is not pulled."""

    pull_threshold_size_bytes: int = field(
        default=100 * MIB, metadata={"key": "pullThresholdSizeForQueue"}
    )
    """Bytes of message bodies held of one queue above which the queue is not pulled."""

    consume_max_span: int = field(default=2_000, metadata={"key": "consumeConcurrentlyMaxSpan"})
    """Distance between the first and last offset held of one queue above which the queue is not
    pulled. It bounds how many messages are redelivered after a crash if one is never finished."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consume_from_where not in _START_POINTS:
            allowed = ", ".join(point.value for point in _START_POINTS)
            raise ConfigError(
                f"consume_from_where is {self.consume_from_where}: expected one of {allowed}"
            )
        find_strategy(self.allocation)
        if self.consume_timestamp_ms is not None and self.consume_timestamp_ms < 0:
            raise ConfigError(
                f"consume_timestamp_ms is {self.consume_timestamp_ms}: must not be negative"
            )
        for name, low, high in _COMMON_RANGES:
            check_range(self, name, low, high)


@documented
@dataclass(frozen=True, kw_only=True)
class PullConsumerConfig(ConsumerConfig):
    """Settings of a `PullConsumer`."""

    pull_timeout_ms: int = field(default=10_000, metadata={"key": "consumerPullTimeoutMillis"})
    """Time in ms for one pull, retries included; `pull_or_wait` adds its wait."""

    wait_ms: int = field(default=20_000, metadata={"key": "brokerSuspendMaxTimeMillis"})
    """Time in ms that a broker holds a `pull_or_wait` which finds no message."""

    pull_bytes_max: int = field(default=2**31 - 1, metadata={"key": "pullBatchSizeInBytes"})
    """Most bytes requested by one pull. Brokers have their own limit, usually 256 KiB."""

    auto_commit: bool = field(default=True, metadata={"key": "autoCommit"})
    """Whether acknowledged messages are committed automatically; a `poll` acknowledges the messages
    of the `poll` before it. False: only `commit` commits."""

    auto_commit_interval_ms: int = field(
        default=5_000, metadata={"key": "autoCommitIntervalMillis"}
    )
    """Time in ms between two automatic commits. After a crash, the messages of up to this time are
    delivered again."""

    poll_timeout_ms: int = field(default=5_000, metadata={"key": "pollTimeoutMillis"})
    """Time in ms that a `poll` waits for a message by default."""

    poll_batch_size: int = field(default=10, metadata={"key": "pullBatchSize"})
    """Most messages requested by one pull on behalf of `poll`, and returned by `poll` by
    default."""

    pull_threshold_all: int = field(default=10_000, metadata={"key": "pullThresholdForAll"})
    """Messages held of all queues above which no queue is pulled."""

    start_offset_retry_ms: int = 3_000
    """Time in ms before a failed query for a queue's start offset is retried."""

    schedule_delay_ms: int = 200
    """Time in ms between two turns of a queue callback that returns no delay."""

    schedule_threads: int = 20
    """Threads for queue callbacks that are plain functions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in _PULL_RANGES:
            check_range(self, name, low, high)


@documented
@dataclass(frozen=True, kw_only=True)
class PushConsumerConfig(ConsumerConfig):
    """Settings of a `PushConsumer`."""

    message_model: MessageModel = field(
        default=MessageModel.CLUSTERING, metadata={"key": "messageModel"}
    )
    """CLUSTERING: each message is delivered to one member of the group. BROADCASTING: to every
    member; each stores its offsets in a local file, and failed messages are logged and not
    redelivered."""

    local_offset_directory: Path | None = field(
        default=None, metadata={"key": "rocketmq.client.localOffsetStoreDir"}
    )
    """Directory of the offsets of BROADCASTING, in `<client id>/<group>/offsets.json`. None:
    `.rocketmq_offsets` in the home directory, which Java's clients use too."""

    mode: ConsumeMode = "pull"
    """"pull": queues are assigned to members, which pull them. With `client_rebalance=False`, the
    brokers may say that the group pops a topic (`kourou group set-mode`). "pop": brokers deliver
    the messages of all queues to any member, and each message is acknowledged by itself; needs
    RocketMQ 5 or Kourou. Ordered listeners pop only with this option. Not for BROADCASTING."""

    client_rebalance: bool = field(default=True, metadata={"key": "clientRebalance"})
    """Whether members assign the queues themselves. False: brokers assign them, by AVG or
    AVG_BY_CIRCLE. Must be the same for all members. Ignored in BROADCASTING and for ordered
    listeners."""

    pop_invisible_ms: int = field(default=60_000, metadata={"key": "popInvisibleTime"})
    """Time in ms after a pop in which no other member gets the message. It is renewed while this
    member holds the message, so it bounds the delay of a redelivery after a crash."""

    pop_batch_size: int = field(default=32, metadata={"key": "popBatchNums"})
    """Most messages of one pop."""

    pop_threshold_count: int = field(default=96, metadata={"key": "popThresholdForQueue"})
    """Messages popped from one topic of one broker and not settled, above which nothing more is
    popped from it."""

    pull_threshold_topic_count: int | None = field(
        default=None, metadata={"key": "pullThresholdForTopic"}
    )
    """Limit of messages held of one topic by this member, divided equally among its queues; it
    replaces `pull_threshold_count`. None: no limit for topics."""

    pull_threshold_topic_size_bytes: int | None = field(
        default=None, metadata={"key": "pullThresholdSizeForTopic"}
    )
    """Limit of bytes of message bodies held of one topic by this member, divided equally among its
    queues; it replaces `pull_threshold_size_bytes`. None: no limit for topics."""

    consume_threads: int = field(default=20, metadata={"key": "consumeThreadMax"})
    """Listener calls that may run at a time, and threads for listeners that are plain
    functions."""

    consume_batch_size: int = field(default=1, metadata={"key": "consumeMessageBatchMaxSize"})
    """Most messages of one queue in one call of a batch listener."""

    consume_timeout_ms: int = field(default=900_000, metadata={"key": "consumeTimeout"})
    """Time in ms that a listener call may take, checked at this interval. An overdue message is
    sent back for redelivery, and the later result of the call is ignored."""

    pull_batch_size: int = field(default=32, metadata={"key": "pullBatchSize"})
    """Most messages requested by one pull."""

    pull_batch_bytes: int = field(default=262_144, metadata={"key": "pullBatchSizeInBytes"})
    """Most bytes requested by one pull. Brokers have their own limit."""

    pull_interval_ms: int = field(default=0, metadata={"key": "pullInterval"})
    """Time in ms between two pulls of a queue that has messages."""

    pull_suspend_timeout_ms: int = 15_000
    """Time in ms that a broker holds a pull which finds no message."""

    pull_timeout_ms: int = 30_000
    """Timeout in ms of a pull, including the time that the broker holds it."""

    max_reconsume_times: int | None = field(default=None, metadata={"key": "maxReconsumeTimes"})
    """Redeliveries of a failed message before the broker stores it in `%DLQ%group`. None: the
    group's own retryMaxTimes, 16 unless an administrator changed it; for ordered listeners, no
    limit."""

    suspend_queue_ms: int = field(default=1_000, metadata={"key": "suspendCurrentQueueTimeMillis"})
    """Time in ms, 10 to 30,000, before a message on which an ordered listener failed is delivered
    again. Its queue is suspended until then; other queues are not."""

    consume_continuously_ms: int = field(
        default=60_000, metadata={"key": "rocketmq.client.maxTimeConsumeContinuously"}
    )
    """Time in ms for which an ordered listener receives messages of one queue while others wait."""

    handover_ms: int = 2_000
    """Delay in ms before this member starts a queue that another member may have held, so that the
    other can finish its running listener calls and commit. It takes at most a quarter of this time
    for the calls. Ordered consumers wait for the queue's lock instead."""

    lock_interval_ms: int = field(
        default=20_000, metadata={"key": "rocketmq.client.rebalance.lockInterval"}
    )
    """Time in ms between two renewals of the locks that an ordered consumer holds."""

    lock_expiry_ms: int = field(
        default=30_000, metadata={"key": "rocketmq.client.rebalance.lockMaxLiveTime"}
    )
    """Time in ms after which an ordered consumer considers a lock that it could not renew as lost.
    At most 45 s: brokers grant it to others after a minute."""

    lock_timeout_ms: int = 1_000
    """Timeout in ms of a request to lock or unlock queues."""

    send_back_timeout_ms: int = 5_000
    """Timeout in ms of sending a failed message back to its broker."""

    local_retry_delay_ms: int = 5_000
    """Time in ms before a message that no broker accepted back is delivered again from memory."""

    persist_offset_interval_ms: int = field(
        default=5_000, metadata={"key": "persistConsumerOffsetInterval"}
    )
    """Time in ms between two commits of offsets. After a crash, the messages of up to this time are
    delivered again."""

    shutdown_timeout_ms: int = field(
        default=10_000, metadata={"key": "awaitTerminationMillisWhenShutdown"}
    )
    """Time in ms that `close` waits for running listener calls; messages of calls that take longer
    are redelivered to another member. A thread cannot be stopped: its function continues, and its
    result is ignored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.message_model not in _MODELS:
            allowed = ", ".join(_MODELS)
            raise ConfigError(f"message_model is {self.message_model}: expected one of {allowed}")
        self._check_mode()
        for name, low, high in _PUSH_RANGES:
            check_range(self, name, low, high)
        if self.pull_threshold_topic_count is not None:
            check_range(self, "pull_threshold_topic_count", 1, 6_553_500)
        if self.pull_threshold_topic_size_bytes is not None:
            check_range(self, "pull_threshold_topic_size_bytes", 1, 102_400 * MIB)
        if not self.client_rebalance and self.allocation not in SERVER_STRATEGIES:
            raise ConfigError(
                f"allocation is {self.allocation}, client_rebalance is False: brokers support "
                f"only {' and '.join(SERVER_STRATEGIES)}"
            )
        if self.max_reconsume_times is not None:
            check_range(self, "max_reconsume_times", 0, 2**31 - 1)
        if self.lock_expiry_ms <= self.lock_interval_ms:
            raise ConfigError(
                f"lock_expiry_ms is {self.lock_expiry_ms}: must be above "
                f"lock_interval_ms, {self.lock_interval_ms}"
            )
        if self.pull_timeout_ms <= self.pull_suspend_timeout_ms:
            raise ConfigError(
                f"pull_timeout_ms is {self.pull_timeout_ms}: must be above "
                f"pull_suspend_timeout_ms, {self.pull_suspend_timeout_ms}"
            )

    def _check_mode(self) -> None:
        if self.mode not in _MODES:
            raise ConfigError(f"mode is {self.mode!r}: expected one of {', '.join(_MODES)}")
        if self.mode == "pop" and self.message_model is MessageModel.BROADCASTING:
            raise ConfigError(
                "mode is 'pop' and message_model is BROADCASTING: a popped message is delivered to "
                "one member; use mode='pull', or a group for each member"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class SimpleConsumerConfig(ClientConfig):
    """Settings of a `SimpleConsumer`."""

    consume_from_where: ConsumeFromWhere = field(
        default=ConsumeFromWhere.LAST_OFFSET, metadata={"key": "consumeFromWhere"}
    )
    """Start position of a group in a queue for which it has no committed offset: LAST_OFFSET or
    FIRST_OFFSET."""

    invisible_ms: int = field(default=60_000, metadata={"key": "popInvisibleTime"})
    """Time in ms after a receive in which no other member gets the message, unless it is renewed.
    Then it is delivered again if it was not acknowledged. Brokers have a limit of their own,
    usually three days."""

    wait_ms: int = field(default=15_000, metadata={"key": "popPollTimeout"})
    """Time in ms that a receive waits for a message by default."""

    ordered: bool = False
    """Whether a queue delivers its next messages only when the earlier ones are acknowledged or
    visible again. Must be the same for all members of a group."""

    max_reconsume_times: int | None = field(default=16, metadata={"key": "maxReconsumeTimes"})
    """Redeliveries of a message before the consumer stores it in `%DLQ%group` instead of returning
    it. A message that ends its program counts as well. None: no limit; brokers have none for
    pops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consume_from_where not in _STARTS.values():
            allowed = ", ".join(point.value for point in _STARTS.values())
            raise ConfigError(
                f"consume_from_where is {self.consume_from_where}: a simple consumer takes one of "
                f"{allowed}; reset the group to start elsewhere (kourou group reset-offset)"
            )
        check_range(self, "invisible_ms", *INVISIBLE_RANGE_MS)
        check_range(self, "wait_ms", 0, 3_600_000)
        if self.max_reconsume_times is not None:
            check_range(self, "max_reconsume_times", 0, 2**31 - 1)


class LiveOptions(TypedDict, total=False):
    """The options that `reconfigure` can change; see `PushConsumerConfig` for each."""

    consume_threads: int
    pull_interval_ms: int
    pop_batch_size: int
    pop_threshold_count: int
    pull_batch_size: int
    pull_batch_bytes: int
    pull_threshold_count: int
    pull_threshold_size_bytes: int
    pull_threshold_topic_count: int | None
    pull_threshold_topic_size_bytes: int | None
    consume_max_span: int


def with_live_options(config: PushConsumerConfig, options: LiveOptions) -> PushConsumerConfig:
    """Return the config with changed options.

    Raises:
        ConfigError: a value is out of its range.
        UsageError: an option does not exist or cannot be changed after construction.
    """
    for name in options:
        if name not in LiveOptions.__annotations__:
            raise UsageError(
                f"{name} cannot be changed after the consumer is constructed: allowed are "
                f"{', '.join(sorted(LiveOptions.__annotations__))}"
            )
    return replace(config, **options)


def with_mode(config: PushConsumerConfig, mode: ConsumeMode | None) -> PushConsumerConfig:
    """Return the config with the mode `mode`; None: the config unchanged.

    Raises:
        ConfigError: `mode` is not a `ConsumeMode`, or cannot be combined with the config.
    """
    return config if mode is None else replace(config, mode=mode)


def with_start(config: ConfigT, start: Start | None) -> ConfigT:
    """Return the config with the start position `start`; None: the config unchanged.

    Raises:
        ConfigError: `start` is not a `Start`.
    """
    if start is None:
        return config
    if isinstance(start, datetime):
        return replace(
            config,
            consume_from_where=ConsumeFromWhere.TIMESTAMP,
            consume_timestamp_ms=int(start.timestamp() * 1000),
        )
    return replace(
        config, consume_from_where=_start_point(start, "'earliest', 'latest' or a datetime")
    )


def with_simple_start(
    config: SimpleConsumerConfig, start: Literal["earliest", "latest"] | None
) -> SimpleConsumerConfig:
    """Return the config with the start position `start`; None: the config unchanged.

    Raises:
        ConfigError: `start` is neither "earliest" nor "latest".
    """
    if start is None:
        return config
    expected = (
        "'earliest' or 'latest'; reset the group to start elsewhere (kourou group reset-offset)"
    )
    return replace(config, consume_from_where=_start_point(start, expected))


def _start_point(start: str, expected: str) -> ConsumeFromWhere:
    point = _STARTS.get(str(start))
    if point is None:
        raise ConfigError(f"start is {start!r}: expected {expected}")
    return point


_STARTS: Final = {
    "earliest": ConsumeFromWhere.FIRST_OFFSET,
    "latest": ConsumeFromWhere.LAST_OFFSET,
}

_COMMON_RANGES: Final = (
    ("rebalance_interval_ms", 1, 3_600_000),
    ("rebalance_retry_min_ms", 1, 3_600_000),
    ("pull_error_delay_ms", 1, 3_600_000),
    ("flow_control_delay_ms", 1, 60_000),
    ("pull_threshold_count", 1, 65_535),
    ("pull_threshold_size_bytes", 1, 1_024 * MIB),
    ("consume_max_span", 1, 65_535),
)
"""Field, lowest and highest value; RocketMQ's own ranges if it has them."""

_PULL_RANGES: Final = (
    ("pull_timeout_ms", 1, 3_600_000),
    ("wait_ms", 1, 3_600_000),
    ("pull_bytes_max", 1, 2**31 - 1),
    ("auto_commit_interval_ms", 1_000, 3_600_000),
    ("poll_timeout_ms", 0, 3_600_000),
    ("poll_batch_size", 1, 1_024),
    ("pull_threshold_all", 1, 6_553_500),
    ("start_offset_retry_ms", 1, 3_600_000),
    ("schedule_delay_ms", 1, 3_600_000),
    ("schedule_threads", 1, 1_000),
)

_PUSH_RANGES: Final = (
    ("consume_threads", 1, 1_000),
    ("consume_batch_size", 1, 1_024),
    ("consume_timeout_ms", 1, 7 * 86_400_000),
    ("pop_invisible_ms", *INVISIBLE_RANGE_MS),
    ("pop_batch_size", 1, 32),
    ("pop_threshold_count", 1, 65_535),
    ("pull_batch_size", 1, 1_024),
    ("pull_batch_bytes", 1, 2**31 - 1),
    ("pull_interval_ms", 0, 65_535),
    ("pull_suspend_timeout_ms", 1, 3_600_000),
    ("pull_timeout_ms", 1, 7_200_000),
    ("send_back_timeout_ms", 1, 3_600_000),
    ("local_retry_delay_ms", 1, 3_600_000),
    ("suspend_queue_ms", 10, 30_000),
    ("consume_continuously_ms", 1, 3_600_000),
    ("handover_ms", 0, 10_000),
    ("lock_interval_ms", 1, 45_000),
    ("lock_expiry_ms", 1, 45_000),
    ("lock_timeout_ms", 1, 10_000),
    ("persist_offset_interval_ms", 1, 3_600_000),
    ("shutdown_timeout_ms", 0, 3_600_000),
)
