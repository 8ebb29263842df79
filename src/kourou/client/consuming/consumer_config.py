"""Settings of the consumers: frozen dataclasses, checked when made.

A field's metadata names RocketMQ's own setting where it has one. Durations end in `_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeVar

from kourou.client.config import MIB, ClientConfig, check_range
from kourou.client.consuming.strategies import find_strategy
from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.model.allocation import Allocate
from kourou.model.group import ConsumeFromWhere, MessageModel
from kourou.model.message import MessageExt

MessageFilter = Callable[[Sequence[MessageExt]], Iterable[MessageExt]]
"""Returns those of the messages of one queue that are to be consumed; called on the event loop."""

_START_POINTS: Final = (
    ConsumeFromWhere.LAST_OFFSET,
    ConsumeFromWhere.FIRST_OFFSET,
    ConsumeFromWhere.TIMESTAMP,
)

SERVER_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")
"""Those by which brokers share queues out."""

_MODELS: Final = (MessageModel.CLUSTERING, MessageModel.BROADCASTING)


Start = Literal["earliest", "latest"] | datetime
"""Where a group starts in a queue for which it has no committed offset."""

ConfigT = TypeVar("ConfigT", bound="ConsumerConfig")


@documented
@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """What push and pull consumers have in common."""

    consume_from_where: ConsumeFromWhere = field(
        default=ConsumeFromWhere.LAST_OFFSET, metadata={"key": "consumeFromWhere"}
    )
    """Where a group starts in a queue for which it has no committed offset."""

    consume_timestamp_ms: int | None = field(default=None, metadata={"key": "consumeTimestamp"})
    """Epoch milliseconds for ConsumeFromWhere.TIMESTAMP. None: half an hour before the start."""

    allocation: str | Allocate = field(
        default="AVG", metadata={"key": "allocateMessageQueueStrategy"}
    )
    """How queues are divided, the same for all members of a group. AVG, AVG_BY_CIRCLE or
    CONSISTENT_HASH by name; a strategy such as `MachineRooms(...)`; `ConfiguredQueues(...)` for
    queues of this member alone; or a function (sorted queues, sorted client ids, own id) -> own
    queues."""

    rebalance_interval_ms: int = 20_000
    """Time in ms between two looks at who consumes what. Brokers also tell of changes at once."""

    rebalance_retry_min_ms: int = 1_000
    """Time in ms to the next look when one changed something or failed; doubled while it fails."""

    message_filter: MessageFilter | None = None
    """Which of the messages that a pull brought are consumed; the others count as done. Behind the
    subscription's filter; what it raises is logged, and lets all pass."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consume_from_where not in _START_POINTS:
            allowed = ", ".join(point.value for point in _START_POINTS)
            raise ConfigError(f"consume_from_where is {self.consume_from_where}: one of {allowed}")
        find_strategy(self.allocation)
        if self.consume_timestamp_ms is not None and self.consume_timestamp_ms < 0:
            raise ConfigError(f"consume_timestamp_ms is {self.consume_timestamp_ms}: not negative")
        for name, low, high in _COMMON_RANGES:
            check_range(self, name, low, high)


@documented
@dataclass(frozen=True, kw_only=True)
class PullConsumerConfig(ConsumerConfig):
    """Settings of a `PullConsumer`."""

    pull_timeout_ms: int = field(default=10_000, metadata={"key": "consumerPullTimeoutMillis"})
    """Time in ms for one pull, all its tries included; with `pull_or_wait` beyond its wait."""

    wait_ms: int = field(default=20_000, metadata={"key": "brokerSuspendMaxTimeMillis"})
    """Time in ms that a broker holds a `pull_or_wait` which finds nothing."""

    pull_bytes_max: int = field(default=2**31 - 1, metadata={"key": "pullBatchSizeInBytes"})
    """Bytes asked for at most by one pull. Brokers have a limit of their own, mostly 256 KiB."""

    auto_commit: bool = field(default=True, metadata={"key": "autoCommit"})
    """What `poll` gave and a later `poll` acknowledged is committed by itself. False: only by
    `commit`."""

    auto_commit_interval_ms: int = field(
        default=5_000, metadata={"key": "autoCommitIntervalMillis"}
    )
    """Time in ms between two such commits. A crash repeats up to this much."""

    poll_timeout_ms: int = field(default=5_000, metadata={"key": "pollTimeoutMillis"})
    """Time in ms that a `poll` waits for a message unless told otherwise."""

    poll_batch_size: int = field(default=10, metadata={"key": "pullBatchSize"})
    """Messages asked for at most by one pull on behalf of `poll`, and given at most by it."""

    pull_threshold_all: int = field(default=10_000, metadata={"key": "pullThresholdForAll"})
    """Messages held of all queues together; above it, none is pulled."""

    start_offset_retry_ms: int = 3_000
    """Time in ms before a broker is asked again where the group begins in a queue."""

    schedule_delay_ms: int = 200
    """Time in ms between two turns of a callback for queues that does not say how long to wait."""

    schedule_threads: int = 20
    """Threads for callbacks for queues that are plain functions."""

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
    """CLUSTERING: each message goes to one member of the group. BROADCASTING: to every member, at
    offsets that each keeps in a file of its own; what fails is logged, and not delivered again."""

    local_offset_directory: Path | None = field(
        default=None, metadata={"key": "rocketmq.client.localOffsetStoreDir"}
    )
    """Where BROADCASTING keeps its offsets, as `<client id>/<group>/offsets.json`. None:
    `.rocketmq_offsets` in the home directory, which Java's clients use too."""

    client_rebalance: bool = field(default=True, metadata={"key": "clientRebalance"})
    """Whether members share queues out by themselves. False: brokers tell each its queues, by AVG
    or AVG_BY_CIRCLE; the same for all members. Ignored in BROADCASTING."""

    pull_threshold_topic_count: int | None = field(
        default=None, metadata={"key": "pullThresholdForTopic"}
    )
    """Messages held of all this member's queues of a topic; each queue has an equal part of it, in
    place of `pull_threshold_count`. None: no limit of topics."""

    pull_threshold_topic_size_bytes: int | None = field(
        default=None, metadata={"key": "pullThresholdSizeForTopic"}
    )
    """The same for bytes of bodies, in place of `pull_threshold_size_bytes`."""

    consume_threads: int = field(default=20, metadata={"key": "consumeThreadMax"})
    """Messages given to listeners at a time, and threads for listeners that are plain functions."""

    consume_batch_size: int = field(default=1, metadata={"key": "consumeMessageBatchMaxSize"})
    """Messages of one queue that a listener of batches gets at most in one call."""

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

    max_reconsume_times: int | None = field(default=None, metadata={"key": "maxReconsumeTimes"})
    """Deliveries again of a failed message before the broker puts it into `%DLQ%group`. None: the
    group's own retryMaxTimes, which is 16 unless an administrator set another; in order, for
    ever."""

    suspend_queue_ms: int = field(default=1_000, metadata={"key": "suspendCurrentQueueTimeMillis"})
    """Time in ms, 10 to 30,000, before an ordered listener gets the message again that it failed
    with. Its queue waits till then; others do not."""

    consume_continuously_ms: int = field(
        default=60_000, metadata={"key": "rocketmq.client.maxTimeConsumeContinuously"}
    )
    """Time in ms for which an ordered listener gets messages of one queue while others wait."""

    handover_ms: int = 2_000
    """Time in ms that a queue which may have been another member's rests before this member starts
    it, so that the other can end and commit what it was doing: for that it takes a quarter. Ordered
    consumers do not rest, but wait for locks."""

    lock_interval_ms: int = field(
        default=20_000, metadata={"key": "rocketmq.client.rebalance.lockInterval"}
    )
    """Time in ms between two requests for the locks that an ordered consumer holds."""

    lock_expiry_ms: int = field(
        default=30_000, metadata={"key": "rocketmq.client.rebalance.lockMaxLiveTime"}
    )
    """Time in ms after which an ordered consumer believes in a lock no more that it could not ask
    for again. At most 45 s: brokers give it to others after a minute."""

    lock_timeout_ms: int = 1_000
    """Time in ms for a request to lock or unlock queues."""

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
        if self.message_model not in _MODELS:
            allowed = ", ".join(_MODELS)
            raise ConfigError(f"message_model is {self.message_model}: one of {allowed}")
        for name, low, high in _PUSH_RANGES:
            check_range(self, name, low, high)
        if self.pull_threshold_topic_count is not None:
            check_range(self, "pull_threshold_topic_count", 1, 6_553_500)
        if self.pull_threshold_topic_size_bytes is not None:
            check_range(self, "pull_threshold_topic_size_bytes", 1, 102_400 * MIB)
        if not self.client_rebalance and self.allocation not in SERVER_STRATEGIES:
            raise ConfigError(
                f"allocation is {self.allocation}, client_rebalance is False: brokers know "
                f"{' and '.join(SERVER_STRATEGIES)} only"
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


def starting(config: ConfigT, start: Start | None) -> ConfigT:
    """Return the config of a group that starts where `start` says; None: as the config says.

    Raises:
        ConfigError: `start` is something else.
    """
    if start is None:
        return config
    if isinstance(start, datetime):
        return replace(
            config,
            consume_from_where=ConsumeFromWhere.TIMESTAMP,
            consume_timestamp_ms=int(start.timestamp() * 1000),
        )
    point = _STARTS.get(str(start))
    if point is None:
        raise ConfigError(f"start is {start!r}: expected 'earliest', 'latest' or a datetime")
    return replace(config, consume_from_where=point)


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
"""Field, lowest and highest value; RocketMQ's own ranges where it has them."""

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
