"""The broker's options: defaults, units, ranges, and RocketMQ's key for each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Final

from kourou.broker.client_shares import PERCENT, Shares
from kourou.broker.timer.timer_config import TimerConfig
from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.model.delay import DELAY_LEVELS_TEXT, parse_delay_levels
from kourou.model.route import WILDCARD_HOSTS
from kourou.model.topic import PERM_READ, PERM_WRITE, TRACE_TOPIC, check_topic
from kourou.protocol.bodies_locks import MessageRequestMode
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import parse_address
from kourou.remoting.transport_config import TransportConfig
from kourou.store.config import StoreConfig

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_SECOND_MS: Final = 1000
_REGISTER_INTERVAL_MIN_MS: Final = 10 * _SECOND_MS
_REGISTER_INTERVAL_MAX_MS: Final = 60 * _SECOND_MS


class FlushDiskType(Enum):
    """When a send is acknowledged, and when consumers see the message."""

    SYNC_FLUSH = "SYNC_FLUSH"
    """After it was synced to the disk: an acknowledged message survives a power cut."""
    ASYNC_FLUSH = "ASYNC_FLUSH"
    """After it was written to the operating system: it survives a kill -9 of the broker, but a
    power cut can take back what came in the last `flush_interval_ms`."""


@documented
@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """What a broker is told at start. Fields marked `live` can be changed while it runs (25).

    Raises:
        ConfigError: a value is out of its range, or does not fit another one.
    """

    broker_name: str = "broker-a"
    """The name under which clients address this broker's queues; also a topic of its own."""
    cluster_name: str = field(default="DefaultCluster", metadata={"key": "brokerClusterName"})
    """The cluster that the broker joins at the name servers; stored in every message."""
    broker_id: int = 0
    """0 is a master. Slaves are not built yet, so that other numbers are refused."""

    listen: str = field(default="127.0.0.1", metadata={"key": "bindAddress"})
    """The local address to listen on. Without access control, anyone who reaches it may send and
    read: widen it with care. Java listens on all."""
    port: int = field(default=10911, metadata={"key": "listenPort"})
    """The TCP port to listen on; 0 takes a free one."""
    vip_port_enable: bool = True
    """Whether to listen on `port - 2` as well, where old clients send to keep away from those who
    pull; pulls are not served there. If that port is taken or not permitted, the broker goes on
    without it. Java always has it."""
    advertise: str | None = field(default=None, metadata={"key": "brokerIP1"})
    """The address in routes, as `host` or `host:port`; None takes the one listened on. Where that
    is all addresses, each client of the name server in the same process is told the one by which it
    came, and other name servers the one by which the broker reaches them."""
    namesrv_addr: tuple[str, ...] = ()
    """The name servers to register with, as `host:port` separated by `;`. Without any, clients
    cannot find the broker."""
    register_interval_ms: int = field(
        default=30 * _SECOND_MS, metadata={"key": "registerNameServerPeriod"}
    )
    """How often to register again, 10 to 60 s: a name server forgets who is silent for 120 s."""
    register_timeout_ms: int = field(
        default=24 * _SECOND_MS, metadata={"key": "registerBrokerTimeoutMills"}
    )
    """How long one registration waits for one name server."""

    flush_disk_type: FlushDiskType = FlushDiskType.SYNC_FLUSH
    """What an acknowledgement means. Java's default is ASYNC_FLUSH."""
    flush_interval_ms: int = field(default=500, metadata={"key": "flushIntervalCommitLog"})
    """With ASYNC_FLUSH, how long a written message waits for its sync, at most."""
    sync_flush_timeout_ms: int = field(default=5 * _SECOND_MS, metadata={"key": "syncFlushTimeout"})
    """How long a send waits for its sync, before it is answered FLUSH_DISK_TIMEOUT."""

    auto_create_topic_enable: bool = field(default=True, metadata={"live": True})
    """Whether a send to an unknown topic makes it, after the pattern of `TBW102`."""
    enable_mixed_message_type: bool = field(default=False, metadata={"live": True})
    """Whether a topic may be declared to take messages of all types (`message.type=MIXED`)."""
    default_topic_queue_nums: int = 8
    """Queues of `TBW102`, and so the most that an automatically made topic gets."""
    auto_create_subscription_group: bool = field(default=True, metadata={"live": True})
    """Whether a heartbeat or pull of an unknown consumer group makes it."""
    broker_permission: int = field(default=PERM_READ | PERM_WRITE, metadata={"live": True})
    """What routes announce: 2 write, 4 read, 6 both; it narrows each topic's own. Pulls of a broker
    that is not readable are refused; so are sends to ordered topics of one that is not writable."""
    region_id: str = "DefaultRegion"
    """Stored in every message as MSG_REGION."""
    trace_on: bool = True
    """Stored in every message as TRACE_ON: whether clients should trace it."""
    trace_topic_enable: bool = False
    """Whether the topic of traces is made at start, with one queue. If not, the first trace makes
    it, where topics are made by sends."""
    msg_trace_topic_name: str = TRACE_TOPIC
    """The topic that `trace_topic_enable` makes."""
    store_reply_message_enable: bool = field(default=True, metadata={"live": True})
    """Whether replies to requests of producers are stored too, and not only handed on."""
    message_delay_level: str = DELAY_LEVELS_TEXT
    """The delay of each level from 1, as `1s 5s 10s`: numbers with s, m, h or d. Each must be
    shorter than `fileReservedTime`. Changing it on a store that holds delayed messages changes when
    they are delivered."""

    max_message_size_bytes: int = field(
        default=4 * _MIB, metadata={"key": "maxMessageSize", "live": True}
    )
    """Largest body of one message, as sent; of a batch, of all its messages together."""
    batch_messages_max: int = field(default=3000, metadata={"live": True})
    """Most messages of one batch: they are checked and stored at once, about 10 us each, in which
    no other client is served. RocketMQ has no such limit."""
    pending_bytes_max: int = 256 * _MIB
    """Bytes appended and not yet synced, from all connections. Beyond it sends are answered
    SYSTEM_BUSY and nothing is stored."""
    pending_connection_bytes_max: int = 64 * _MIB
    """The same for one connection, so that one producer cannot take it all."""
    pending_requests_max: int = 100_000
    """Sends of all connections that wait for their acknowledgement."""

    long_polling_enable: bool = field(default=True, metadata={"live": True})
    """Whether a pull that finds nothing is held until a message comes or its time is over."""
    short_polling_time_ms: int = field(
        default=1 * _SECOND_MS, metadata={"key": "shortPollingTimeMills", "live": True}
    )
    """How long such a pull is held when `long_polling_enable` is off."""
    held_pulls_max: int = 100_000
    """Pulls held at once; one more is answered at once, as if its time were over."""
    pull_bytes_max: int = field(
        default=256 * _KIB, metadata={"key": "maxTransferBytesOnMessageInMemory", "live": True}
    )
    """Most bytes of one pull's answer; a single larger message is still handed out."""
    pull_messages_max: int = field(
        default=32, metadata={"key": "maxTransferCountOnMessageInMemory", "live": True}
    )
    """Most messages of one pull's answer."""
    skip_damaged_records: bool = field(default=False, metadata={"live": True})
    """Whether consumers go on behind a record that is damaged on the disk, and delayed messages
    behind one of their level. If not, they wait there until the record is restored, the offset
    is moved, or this is switched on. RocketMQ has no such key."""

    verify_compressed_bodies: bool = field(default=False, metadata={"live": True})
    """Whether compressed bodies are inflated when they are sent, and refused where that fails: a
    producer then learns of what no consumer could read. It costs more than the rest of a send, so
    it is off. RocketMQ has no such key."""

    enable_property_filter: bool = field(default=False, metadata={"live": True})
    """Whether consumers may filter by properties (SQL92), which reads every message of a queue. If
    not, their subscriptions and pulls are refused."""
    filter_support_retry: bool = field(default=False, metadata={"live": True})
    """Whether messages that are tried again are filtered once more, by the filter of the topic that
    they were sent to, where a group subscribes to its retry topic by properties."""
    enable_calc_filter_bit_map: bool = field(default=False, metadata={"live": True})
    """Whether each message of a topic with such consumers gets a bit map of the filters that it
    passes, so that pulls need not read it; with `consumequeue_extension`, which holds it."""
    max_error_rate_of_bloom_filter: int = 20
    """Percentage of messages that a bit map wrongly says to pass, 1 to 99. Changing it, or the next
    one, makes the bit maps that there are, and `config/consumerFilter.json`, useless."""
    expect_consumer_num_use_filter: int = 32
    """Consumer groups of a topic for which this holds."""
    filter_data_clean_time_span_ms: int = field(
        default=24 * 3600 * _SECOND_MS, metadata={"key": "filterDataCleanTimeSpan"}
    )
    """How long the filter of a group without members is kept, with its place in bit maps."""

    channel_expired_timeout_ms: int = field(
        default=120 * _SECOND_MS, metadata={"key": "channelExpiredTimeout"}
    )
    """A client that sent no heartbeat for so long has left its groups."""
    clients_max: int = 100_000
    """Clients known by their heartbeats, over all groups."""
    client_share_percent: int = 50
    """How much of what the broker has room for the clients of one host may make by using it:
    topics, consumer groups, filters by properties, and pairs of group and topic with offsets. What
    administrators make does not count."""
    unused_group_ms: int = 3 * 24 * 3600 * _SECOND_MS
    """How long a group is kept that has no settings of its own, no member, and no offset anywhere,
    where groups are made on their first use; and offsets in topics that do not exist."""
    notify_consumer_ids_changed_enable: bool = field(default=True, metadata={"live": True})
    """Whether members are told when another comes or goes. If not, they notice within 20 s. A group
    can say so for itself."""
    real_time_notify_consumer_change: bool = field(default=True, metadata={"live": True})
    """Whether they are told at once. If not, every 15 s, which spares large groups many rebalances
    while their members start."""
    server_load_balancer_enable: bool = field(default=True, metadata={"live": True})
    """Whether members that ask the broker for their queues get a share. If not, each gets all."""
    default_message_request_mode: MessageRequestMode = field(
        default=MessageRequestMode.PULL, metadata={"live": True}
    )
    """How such members read topics for which nobody has set it (401). Pop is not built yet: with
    POP, they are told to pull as well, and the log says so."""
    default_pop_share_queue_num: int = field(default=-1, metadata={"live": True})
    """With POP, how many other members read a member's queues too; below 1: all of them. Without
    effect until pop is built."""
    use_server_side_reset_offset: bool = True
    """Whether a group whose offset is reset learns of it by its next pull, connected or not. If
    not, its connected members are told, as by brokers before 5.0, and one that is not connected
    cannot be reset."""
    disable_consume_if_consumer_read_slowly: bool = field(default=False, metadata={"live": True})
    """Whether a group with members is stopped that is further behind than the next one says."""
    consumer_fallbehind_threshold_bytes: int = field(
        default=16 * 1024 * _MIB, metadata={"key": "consumerFallbehindThreshold", "live": True}
    )
    """Bytes of the log, of all topics, that a group may have before it in a queue. Looked at every
    three minutes."""
    consumer_offset_interval_ms: int = field(
        default=5 * _SECOND_MS, metadata={"key": "flushConsumerOffsetInterval"}
    )
    """How often committed offsets are written. After a kill -9, consumers see again what they
    committed within it."""
    delay_offset_interval_ms: int = field(
        default=10 * _SECOND_MS, metadata={"key": "flushDelayOffsetInterval"}
    )
    """How often the progress of delayed delivery is written; the same holds for it."""

    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    """Half messages, and the checks of those that nobody ends."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Bounds of the connections of clients, and of those to name servers."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    """TLS, and load balancers in front."""
    timer: TimerConfig = field(default_factory=TimerConfig)
    """Messages that are delivered at a time; its keys stand in the same flat file as these."""
    store: StoreConfig = field(default_factory=StoreConfig)
    """The sizes of the store's files; its keys stand in the same flat file as these."""

    def __post_init__(self) -> None:
        _check_names(self)
        _check_at_least(self, "port", 0)
        if self.port > 65535:
            raise ConfigError(f"port is {self.port}; it must be 0 to 65535")
        if self.broker_id != 0:
            raise ConfigError(
                f"broker_id is {self.broker_id}; only 0, a master, is served: "
                "replication is not built yet"
            )
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
        """Milliseconds of each delay level, level 1 first."""
        return parse_delay_levels(self.message_delay_level)

    def shares_of(self, room: int) -> Shares:
        """Return the shares of a table that has so much room."""
        return Shares(max(1, room * self.client_share_percent // PERCENT))

    @property
    def store_config(self) -> StoreConfig:
        """What the store is opened with: `store`, and the delay levels of this broker."""
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
"""Fields of which 0 or less would switch off what they bound."""


def _check_names(config: BrokerConfig) -> None:
    """Refuse a name of broker, cluster or traces that could not be the topic that it makes.

    A broker's may begin with a machine room, `room1@broker-a`, by which clients allocate queues.
    """
    for name in ("broker_name", "cluster_name", "msg_trace_topic_name"):
        value = getattr(config, name)
        parts = value.split("@", 1) if name == "broker_name" else (value,)
        try:
            for part in parts:
                check_topic(part)
            check_topic(value.replace("@", "-", len(parts) - 1))  # its length as a whole
        except ValueError as error:
            raise ConfigError(f"{name} is {value!r}: {error}") from None


def _check_addresses(config: BrokerConfig) -> None:
    """Refuse addresses that nobody could connect to; without this only a log entry would tell."""
    try:
        for address in config.namesrv_addr:
            parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"namesrv_addr: {error}") from None
    try:
        if config.advertise is not None:
            # where the port is 0, the one that is found is added later
            _check_advertised(*parse_address(config.advertise, config.port or 1))
    except ConfigError as error:
        raise ConfigError(f"advertise: {error}") from None


def _check_advertised(host: str, port: int) -> None:
    """Refuse an address that leads a client to its own machine, or to no port.

    Raises:
        ConfigError: it is the address of all addresses, or port 0.
    """
    if host in WILDCARD_HOSTS:
        raise ConfigError(f"{host} names no machine: give an address that clients reach")
    if port == 0:
        raise ConfigError(
            "port 0 is no port that clients reach: leave it out, or give the real one"
        )


def _check_sizes(config: BrokerConfig) -> None:
    """Refuse sizes that leave no room for the largest message that is allowed."""
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
    """Refuse delay levels whose messages could expire before they are due.

    Scheduled messages are stored again on the way, so that their delay may be longer.
    """
    kept_hours = config.store.retention.file_reserved_hours
    longest_ms = max(config.delay_levels_ms)
    if longest_ms >= kept_hours * _HOUR_MS:
        level = config.delay_levels_ms.index(longest_ms) + 1
        raise ConfigError(
            f"messageDelayLevel: level {level} waits {longest_ms // _SECOND_MS} s, and messages "
            f"expire after {kept_hours} h (fileReservedTime), which would take delayed ones before "
            f"they are due: shorten the level, or keep messages for {longest_ms // _HOUR_MS + 1} h"
        )


def _check_at_least(config: BrokerConfig, name: str, least: int) -> None:
    value = getattr(config, name)
    if value < least:
        raise ConfigError(f"{name} is {value}; it must be at least {least}")
