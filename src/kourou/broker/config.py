"""Options of the broker: defaults, units, ranges, and RocketMQ's key for each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Final

from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.host_quotas import PERCENT, HostQuota
from kourou.broker.popping.pop_config import PopConfig
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.timer.timer_config import TimerConfig
from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.model.delay import DELAY_LEVELS_TEXT, parse_delay_levels
from kourou.model.topic import PERM_READ, PERM_WRITE, TRACE_TOPIC, check_topic
from kourou.protocol.queue_assignment import MessageRequestMode
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import parse_address, parse_advertised
from kourou.remoting.transport_config import TransportConfig
from kourou.store.config import StoreConfig

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_SECOND_MS: Final = 1000
_REGISTER_INTERVAL_MIN_MS: Final = 10 * _SECOND_MS
_REGISTER_INTERVAL_MAX_MS: Final = 60 * _SECOND_MS


class FlushDiskType(Enum):
    """Time at which a send is acknowledged and the message becomes visible to consumers."""

    SYNC_FLUSH = "SYNC_FLUSH"
    """After the message is synced to the disk: an acknowledged message survives a power cut."""
    ASYNC_FLUSH = "ASYNC_FLUSH"
    """After the message is written to the operating system: it survives a kill -9 of the broker,
    but a power cut can lose the messages of the last `flush_interval_ms`."""


@documented
@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Options of a broker. Those marked `live` can be changed while it runs, by request 25.

    Raises:
        ConfigError: a value is out of its range, or conflicts with another one.
    """

    broker_name: str = "broker-a"
    """The name by which clients address this broker's queues; a topic of this name exists too."""
    cluster_name: str = field(default="DefaultCluster", metadata={"key": "brokerClusterName"})
    """The cluster that the broker joins at the name servers; stored in every message."""
    broker_id: int = 0
    """0 is a master, other numbers are its slaves."""

    listen: str = field(default="127.0.0.1", metadata={"key": "bindAddress"})
    """The local address to listen on. There is no access control: every client that can reach the
    address may send and read, so widen it with care. Java listens on all addresses."""
    port: int = field(default=10911, metadata={"key": "listenPort"})
    """The TCP port to listen on; 0 takes a free one."""
    vip_port_enable: bool = True
    """Whether to listen on `port - 2` as well, the VIP port to which old clients send. Pulls are
    not served there. If that port is taken or not permitted, the process runs without it until it
    ends. Java always opens it."""
    advertise: str | None = field(default=None, metadata={"key": "brokerIP1"})
    """The address in routes, as `host` or `host:port`; None takes the one listened on. If that is a
    wildcard address, the name server in the same process answers each client with the address to
    which the client connected, and other name servers get the address from which the broker
    connects to them."""
    namesrv_addr: tuple[str, ...] = ()
    """The name servers to register with, as `host:port` separated by `;`. Without any, clients
    cannot find the broker."""
    register_interval_ms: int = field(
        default=30 * _SECOND_MS, metadata={"key": "registerNameServerPeriod"}
    )
    """Interval of registrations, 10 to 60 s. A name server removes a broker that does not register
    for 120 s."""
    register_timeout_ms: int = field(
        default=24 * _SECOND_MS, metadata={"key": "registerBrokerTimeoutMills"}
    )
    """Time-out of one registration at one name server."""

    flush_disk_type: FlushDiskType = FlushDiskType.SYNC_FLUSH
    """Durability of an acknowledged message: synced (SYNC_FLUSH) or only written (ASYNC_FLUSH).
    Java's default is ASYNC_FLUSH."""
    flush_interval_ms: int = field(default=500, metadata={"key": "flushIntervalCommitLog"})
    """With ASYNC_FLUSH, the longest time from the write of a message to its sync."""
    sync_flush_timeout_ms: int = field(default=5 * _SECOND_MS, metadata={"key": "syncFlushTimeout"})
    """How long a send waits for its sync before it is answered with FLUSH_DISK_TIMEOUT."""

    auto_create_topic_enable: bool = field(default=True, metadata={"live": True})
    """Whether a send to an unknown topic creates it, with the settings of `TBW102`."""
    enable_mixed_message_type: bool = field(default=False, metadata={"live": True})
    """Whether a topic may be declared for messages of all types (`message.type=MIXED`)."""
    default_topic_queue_nums: int = 8
    """Queues of `TBW102`, and so the most queues of an automatically created topic."""
    auto_create_subscription_group: bool = field(default=True, metadata={"live": True})
    """Whether a heartbeat or pull of an unknown consumer group creates it."""
    broker_permission: int = field(default=PERM_READ | PERM_WRITE, metadata={"live": True})
    """The permission in routes: 2 write, 4 read, 6 both; it restricts the permission of each topic.
    A broker that is not readable refuses pulls; one that is not writable refuses sends to ordered
    topics."""
    region_id: str = "DefaultRegion"
    """Stored in every message as MSG_REGION."""
    trace_on: bool = True
    """Stored in every message as TRACE_ON: whether clients should trace it."""
    trace_topic_enable: bool = False
    """Whether the trace topic is created at start, with one queue. If not, the first trace creates
    it, provided that sends may create topics."""
    msg_trace_topic_name: str = TRACE_TOPIC
    """The name of the topic that `trace_topic_enable` creates."""
    store_reply_message_enable: bool = field(default=True, metadata={"live": True})
    """Whether replies to requests of producers are stored, besides being pushed to the producer."""
    message_delay_level: str = DELAY_LEVELS_TEXT
    """The delay of each level from 1, as `1s 5s 10s`: numbers with s, m, h or d. Each must be
    shorter than `fileReservedTime`. Changing it on a store that holds delayed messages changes when
    they are delivered."""

    max_message_size_bytes: int = field(
        default=4 * _MIB, metadata={"key": "maxMessageSize", "live": True}
    )
    """Largest body of one message, as sent; of a batch, the largest sum of its bodies."""
    batch_messages_max: int = field(default=3000, metadata={"live": True})
    """Most messages of one batch. A batch is checked and stored in one step of about 10 us a
    message, during which no other client is served. RocketMQ has no such limit."""
    pending_bytes_max: int = 256 * _MIB
    """Most bytes that are appended and not yet synced, from all connections. Beyond it sends are
    answered with SYSTEM_BUSY and nothing is stored."""
    pending_connection_bytes_max: int = 64 * _MIB
    """The same for one connection, so that one producer cannot exhaust `pending_bytes_max`."""
    pending_requests_max: int = 100_000
    """Most sends that wait for their acknowledgement, from all connections."""

    long_polling_enable: bool = field(default=True, metadata={"live": True})
    """Whether a pull that finds no message is held until one arrives or the pull times out."""
    short_polling_time_ms: int = field(
        default=1 * _SECOND_MS, metadata={"key": "shortPollingTimeMills", "live": True}
    )
    """How long such a pull is held when `long_polling_enable` is off."""
    held_pulls_max: int = 100_000
    """Most pulls that are held; a pull beyond it is answered at once, as if it had timed out."""
    pull_bytes_max: int = field(
        default=256 * _KIB, metadata={"key": "maxTransferBytesOnMessageInMemory", "live": True}
    )
    """Most bytes of one pull's answer; a single message that is larger is still delivered."""
    pull_messages_max: int = field(
        default=32, metadata={"key": "maxTransferCountOnMessageInMemory", "live": True}
    )
    """Most messages of one pull's answer."""
    skip_damaged_records: bool = field(default=False, metadata={"live": True})
    """Whether consumers skip a record that is damaged on the disk, and delay levels skip a damaged
    delayed message. If not, they stop there until the record is restored, the offset is moved, or
    this is switched on. RocketMQ has no such key."""

    verify_compressed_bodies: bool = field(default=False, metadata={"live": True})
    """Whether compressed bodies are decompressed when they are sent, and refused if that fails. The
    producer then gets an error for a message that no consumer could read. The check costs more than
    the rest of a send, so it is off by default. RocketMQ has no such key."""

    enable_property_filter: bool = field(default=False, metadata={"live": True})
    """Whether consumers may filter by properties (SQL92), which reads every message of a queue. If
    not, their subscriptions and pulls are refused."""
    filter_support_retry: bool = field(default=False, metadata={"live": True})
    """Whether messages of a retry topic are filtered again, by the group's filter for the topic
    that they were sent to, if the group subscribes to its retry topic by properties."""
    enable_calc_filter_bit_map: bool = field(default=False, metadata={"live": True})
    """Whether each message of a topic with such consumers gets a bit map of the filters that it
    passes, so that pulls need not read messages that do not. Requires `consumequeue_extension`,
    where the bit maps are stored."""
    max_error_rate_of_bloom_filter: int = 20
    """Percentage of messages for which a bit map wrongly indicates a match, 1 to 99. Changing this
    option or the next one invalidates the stored bit maps and `config/consumerFilter.json`."""
    expect_consumer_num_use_filter: int = 32
    """Number of consumer groups of a topic up to which that percentage holds."""
    filter_data_clean_time_span_ms: int = field(
        default=24 * 3600 * _SECOND_MS, metadata={"key": "filterDataCleanTimeSpan"}
    )
    """How long the filter of a group without members is kept, with its bits in the bit maps."""

    channel_expired_timeout_ms: int = field(
        default=120 * _SECOND_MS, metadata={"key": "channelExpiredTimeout"}
    )
    """A client that sends no heartbeat for this time is removed from its groups."""
    clients_max: int = 100_000
    """Most clients registered by heartbeats, summed over all groups."""
    client_share_percent: int = 50
    """Percentage of each table of the broker that the clients of one host may fill by use. The
    tables are topics, consumer groups, filters by properties, and pairs of group and topic with
    offsets. Entries that administrators create do not count."""
    unused_group_ms: int = 3 * 24 * 3600 * _SECOND_MS
    """How long a group is kept without settings of its own, members and offsets, where the first
    use of a group creates it; also how long offsets in topics that do not exist are kept."""
    notify_consumer_ids_changed_enable: bool = field(default=True, metadata={"live": True})
    """Whether the members of a group are notified when one joins or leaves. If not, they notice
    within 20 s. Each group can also switch this off for itself."""
    real_time_notify_consumer_change: bool = field(default=True, metadata={"live": True})
    """Whether these notifications are sent at once. If not, they are sent every 15 s, which spares
    large groups many rebalances while their members start."""
    server_load_balancer_enable: bool = field(default=True, metadata={"live": True})
    """Whether members that ask the broker for their queues are assigned a share. If not, each is
    assigned all queues."""
    default_message_request_mode: MessageRequestMode = field(
        default=MessageRequestMode.PULL, metadata={"live": True}
    )
    """How such members read topics for which no mode has been set (401)."""
    default_pop_share_queue_num: int = field(default=-1, metadata={"live": True})
    """With POP, how many other members also read a member's queues; below 1: all of them."""
    use_server_side_reset_offset: bool = True
    """Whether a group learns of an offset reset from the answer to its next pull, whether it is
    connected or not. If off, the broker notifies the connected members, as before RocketMQ 5.0, and
    a group without connected members cannot be reset."""
    disable_consume_if_consumer_read_slowly: bool = field(default=False, metadata={"live": True})
    """Whether a group with members is stopped if it is further behind than the next option
    allows."""
    consumer_fallbehind_threshold_bytes: int = field(
        default=16 * 1024 * _MIB, metadata={"key": "consumerFallbehindThreshold", "live": True}
    )
    """Most bytes of the log, over all topics, by which a group may be behind in a queue. Checked
    every three minutes."""
    consumer_offset_interval_ms: int = field(
        default=5 * _SECOND_MS, metadata={"key": "flushConsumerOffsetInterval"}
    )
    """How often committed offsets are written. After a kill -9, messages whose offsets were
    committed within this interval are delivered again."""
    delay_offset_interval_ms: int = field(
        default=10 * _SECOND_MS, metadata={"key": "flushDelayOffsetInterval"}
    )
    """How often the progress of delay levels is written. After a kill -9, messages that were
    delivered within this interval are delivered again."""

    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    """Half messages, and the checks of those that no producer ends."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Limits of connections from clients and to name servers."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    """TLS and the PROXY protocol of load balancers."""
    timer: TimerConfig = field(default_factory=TimerConfig)
    """Options of scheduled messages; its keys are in the same flat file as these."""
    pop: PopConfig = field(default_factory=PopConfig)
    """Options of pop consumption; its keys are in the same flat file as these."""
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    """Options of replication; its keys are in the same flat file as these."""
    controller: ControllerModeConfig = field(default_factory=ControllerModeConfig)
    """Options of controller mode; its keys are in the same flat file as these."""
    store: StoreConfig = field(default_factory=StoreConfig)
    """Options of the store; its keys are in the same flat file as these."""

    def __post_init__(self) -> None:
        _check_names(self)
        _check_at_least(self, "port", 0)
        if self.port > 65535:
            raise ConfigError(f"port is {self.port}; it must be 0 to 65535")
        _check_role(self)
        if not _REGISTER_INTERVAL_MIN_MS <= self.register_interval_ms <= _REGISTER_INTERVAL_MAX_MS:
            raise ConfigError(
                f"register_interval_ms is {self.register_interval_ms}; it must be "
                f"{_REGISTER_INTERVAL_MIN_MS} to {_REGISTER_INTERVAL_MAX_MS}"
            )
        if self.broker_permission not in (PERM_READ, PERM_WRITE, PERM_READ | PERM_WRITE):
            raise ConfigError(
                f"broker_permission is {self.broker_permission}; it must be 2 (write), 4 (read) "
                "or 6 (both)"
            )
        parse_delay_levels(self.message_delay_level)
        if not 1 <= self.max_error_rate_of_bloom_filter <= _PERCENT_MAX:
            raise ConfigError(
                f"max_error_rate_of_bloom_filter is {self.max_error_rate_of_bloom_filter}; it must "
                f"be 1 to {_PERCENT_MAX} percent"
            )
        if not 1 <= self.client_share_percent <= PERCENT:
            raise ConfigError(
                f"client_share_percent is {self.client_share_percent}; it must be 1 to {PERCENT}"
            )
        _check_addresses(self)
        for name in _POSITIVE:
            _check_at_least(self, name, 1)
        _check_sizes(self)
        _check_delays(self)

    @cached_property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each level in milliseconds, level 1 first."""
        return parse_delay_levels(self.message_delay_level)

    def host_quota(self, room: int) -> HostQuota:
        """Return the quotas per client host of a table with `room` units."""
        return HostQuota(max(1, room * self.client_share_percent // PERCENT))

    @property
    def store_config(self) -> StoreConfig:
        """The store's options: `store` with the delay levels of this broker."""
        return replace(self.store, delay_levels_ms=self.delay_levels_ms)

    @property
    def is_writable(self) -> bool:
        """Whether `broker_permission` allows sends."""
        return bool(self.broker_permission & PERM_WRITE)

    @property
    def is_readable(self) -> bool:
        """Whether `broker_permission` allows pulls."""
        return bool(self.broker_permission & PERM_READ)


_HOUR_MS: Final = 3600 * _SECOND_MS
_PERCENT_MAX: Final = 99
_POSITIVE: Final = (
    "register_timeout_ms",
    "flush_interval_ms",
    "sync_flush_timeout_ms",
    "default_topic_queue_nums",
    "max_message_size_bytes",
    "batch_messages_max",
    "pending_bytes_max",
    "pending_connection_bytes_max",
    "pending_requests_max",
    "short_polling_time_ms",
    "held_pulls_max",
    "pull_bytes_max",
    "pull_messages_max",
    "channel_expired_timeout_ms",
    "clients_max",
    "unused_group_ms",
    "expect_consumer_num_use_filter",
    "filter_data_clean_time_span_ms",
    "consumer_fallbehind_threshold_bytes",
    "consumer_offset_interval_ms",
    "delay_offset_interval_ms",
)
"""Fields that must be at least 1; 0 or less would disable the function that they limit."""


def _check_role(config: BrokerConfig) -> None:
    """Check that the broker's id is that of its role; controllers assign both."""
    if config.controller.enable_controller_mode:
        if config.replication.enable_slave_acting_master:
            raise ConfigError(
                "enable_slave_acting_master is set, but with enable_controller_mode a lost master "
                "is replaced by the election of another"
            )
        return
    is_slave = config.replication.is_slave
    if is_slave and config.broker_id < 1:
        raise ConfigError(
            f"broker_id is {config.broker_id}; with broker_role SLAVE it must be at least 1, and "
            "different for each slave of the master"
        )
    if not is_slave and config.broker_id != 0:
        raise ConfigError(
            f"broker_id is {config.broker_id}; it must be 0, a master, without broker_role SLAVE"
        )


def _check_names(config: BrokerConfig) -> None:
    """Check that the names of broker, cluster and trace topic are valid topic names.

    A broker name may begin with a machine room, as in `room1@broker-a`, by which clients allocate
    queues.
    """
    for name in ("broker_name", "cluster_name", "msg_trace_topic_name"):
        value = getattr(config, name)
        parts = value.split("@", 1) if name == "broker_name" else (value,)
        try:
            for part in parts:
                check_topic(part)
            check_topic(value.replace("@", "-", len(parts) - 1))  # checks the whole length
        except ValueError as error:
            raise ConfigError(f"{name} is {value!r}: {error}") from None


def _check_addresses(config: BrokerConfig) -> None:
    """Check addresses that would otherwise only cause log entries once the broker runs."""
    try:
        for address in config.namesrv_addr:
            parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"namesrv_addr: {error}") from None
    try:
        if config.advertise is not None:
            # with port 0, the port that is really listened on is filled in later
            parse_advertised(config.advertise, config.port or 1)
    except ConfigError as error:
        raise ConfigError(f"advertise: {error}") from None


def _check_sizes(config: BrokerConfig) -> None:
    """Check that segments and limits of pending bytes have room for the largest message."""
    segment_bytes = config.store.commitlog_segment_bytes
    if config.max_message_size_bytes > segment_bytes // 2:
        raise ConfigError(
            f"max_message_size_bytes is {config.max_message_size_bytes}; it must be at most half "
            f"of commitlog_segment_bytes, {segment_bytes}"
        )
    if config.pending_connection_bytes_max < 2 * config.max_message_size_bytes:
        raise ConfigError(
            f"pending_connection_bytes_max is {config.pending_connection_bytes_max}; it must be at "
            f"least twice max_message_size_bytes, {config.max_message_size_bytes}"
        )
    if config.pending_bytes_max < config.pending_connection_bytes_max:
        raise ConfigError(
            f"pending_bytes_max is {config.pending_bytes_max}; it must be at least "
            f"pending_connection_bytes_max, {config.pending_connection_bytes_max}"
        )


def _check_delays(config: BrokerConfig) -> None:
    """Check that no message of a delay level can expire before it is due.

    Scheduled messages are not limited by this, because they are stored again while they wait.
    """
    reserved_hours = config.store.retention.file_reserved_hours
    longest_ms = max(config.delay_levels_ms)
    if longest_ms >= reserved_hours * _HOUR_MS:
        level = config.delay_levels_ms.index(longest_ms) + 1
        raise ConfigError(
            f"messageDelayLevel: level {level} is {longest_ms // _SECOND_MS} s, but messages "
            f"expire after {reserved_hours} h (fileReservedTime), before those of this level are "
            f"due: shorten the level, or set fileReservedTime to {longest_ms // _HOUR_MS + 1}"
        )


def _check_at_least(config: BrokerConfig, name: str, least: int) -> None:
    value = getattr(config, name)
    if value < least:
        raise ConfigError(f"{name} is {value}; it must be at least {least}")
