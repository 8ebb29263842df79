"""Options of replication, with RocketMQ's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.protocol.replication import TRANSFER_BYTES_MAX
from kourou.remoting.network import parse_address
from kourou.remoting.networks import Networks


class BrokerRole(Enum):
    """The part of a broker in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    """Accepts messages, and does not wait for slaves before it acknowledges them."""
    SYNC_MASTER = "SYNC_MASTER"
    """Accepts messages, and acknowledges them when `inSyncReplicas` brokers have them."""
    SLAVE = "SLAVE"
    """Copies the messages of its master."""


_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_SECOND_MS: Final = 1_000
_PORT_MAX: Final = 65_535
_PERCENT_MAX: Final = 100


@documented
@dataclass(frozen=True, kw_only=True)
class ReplicationConfig:
    """Options of replication.

    Raises:
        ConfigError: a value is out of its range.
    """

    broker_role: BrokerRole | None = None
    """The part of the broker in replication. Without it the broker is a master, and opens no port
    for slaves unless `ha_listen_port` is set."""
    ha_listen_port: int | None = None
    """The TCP port at which slaves copy the log of a master. 0, or nothing with a `broker_role`,
    takes `listenPort` + 1. Every program that can reach the port may copy all messages, unless
    `ha_allowed_addresses` is set."""
    ha_allowed_addresses: tuple[str, ...] = ()
    """Addresses and networks from which slaves may connect to that port, such as
    `10.0.0.7;10.1.0.0/16`; none allows all. Other connections are closed at once. Set it on all
    brokers of a name that may become the master. RocketMQ has no such option."""
    ha_master_address: str = ""
    """The address of the master's port for slaves, as `host:port`. Without it a slave takes the one
    that name servers have."""
    sync_broker_member_group_period_ms: int = field(
        default=1 * _SECOND_MS, metadata={"key": "syncBrokerMemberGroupPeriod"}
    )
    """How often a slave that is not connected to its master asks the name servers for it."""
    enable_slave_acting_master: bool = False
    """Whether the slave with the smallest id acts for its master while that is away: it serves
    reads and offset commits. Name servers show it as the master, not writable, with their option
    `supportActingMaster`. The same for all brokers of a name."""
    enable_remote_escape: bool = False
    """With that, whether the slave also delivers messages of delay levels and scheduled messages,
    hands over open transactions, and serves pops, while it acts. It sends them, and the checkpoints
    and acks of the pops, to the masters of other broker names, where their topics must exist."""
    broker_heartbeat_interval_ms: int = field(
        default=1 * _SECOND_MS, metadata={"key": "brokerHeartbeatInterval"}
    )
    """How often a broker with that option sends a heartbeat to its name servers."""
    broker_not_active_timeout_ms: int = field(
        default=10 * _SECOND_MS, metadata={"key": "brokerNotActiveTimeoutMillis"}
    )
    """How long after its last heartbeat name servers remove such a broker."""
    total_replicas: int = 1
    """With `enable_slave_acting_master`, how many brokers of the name there are, the master
    included. If there are several, a master that starts first takes back from its slaves what has
    changed there while one of them acted for it: offsets, and the progress of deliveries."""
    skip_pre_online: bool = False
    """Whether a master starts without that."""
    sync_master_flush_offset_when_startup: bool = False
    """Whether a slave that knows no flushed position of its master takes it from one that returns.
    Kourou's slaves only report it (`haStatus`)."""
    slave_read_enable: bool = False
    """Whether a slave serves pulls. If not, it answers them with SYSTEM_BUSY, and clients read from
    the master only. On a master, whether it sends readers that are far behind to a slave; set it on
    both."""
    access_message_in_memory_max_ratio: int = 40
    """With `slave_read_enable`, the share of `memory_bytes`, in per cent, that the newest messages
    are expected to occupy. Readers of older ones are sent to a slave, whose id is in their group
    (`whichBrokerWhenConsumeSlowly`)."""
    memory_bytes: int = 4096 * _MIB
    """The machine's memory, of which that is a share. `kourou serve` takes it from the machine, or
    from the limit of its container. RocketMQ has no such option."""
    in_sync_replicas: int = 1
    """With SYNC_MASTER, how many brokers must have a message, the master included, before a send
    is acknowledged. Slaves are counted by host. With 1, sends wait for no slave."""
    all_ack_in_sync_state_set: bool = True
    """In controller mode, whether all members of the in-sync set must have a message before a send
    is acknowledged, instead of `in_sync_replicas` of them. RocketMQ's default is false. Without it
    a failover may lose acknowledged messages, since any member of the set can be elected."""
    min_in_sync_replicas: int = 1
    """In controller mode, how many members, the master included, the in-sync set must have. With
    fewer, sends are refused with SYSTEM_ERROR, and no send is acknowledged. Without a controller
    the same for the brokers that are in sync, with `enable_auto_in_sync_replicas`."""
    enable_auto_in_sync_replicas: bool = False
    """Without a controller, whether sends wait for fewer brokers than `in_sync_replicas` while
    fewer are in sync: connected, and less than 256 MiB behind. One that is left alone then
    acknowledges sends by itself, unless `min_in_sync_replicas` is above 1. RocketMQ's brokers do so
    with `enable_slave_acting_master` only. In controller mode it has no effect: there the in-sync
    set shrinks, and all of it must have a message (`all_ack_in_sync_state_set`)."""
    ha_max_time_slave_not_catchup_ms: int = field(
        default=2 * _SECOND_MS, metadata={"key": "haMaxTimeSlaveNotCatchup"}
    )
    """In controller mode, how long a slave may lack a part of the log before it leaves the in-sync
    set. Sends wait for it until then. RocketMQ's default is 15 s."""
    check_sync_state_set_period_ms: int = field(
        default=500, metadata={"key": "checkSyncStateSetPeriod"}
    )
    """How often a master checks for that. RocketMQ's default is 5 s."""
    async_learner: bool = False
    """Whether a slave in controller mode never joins the in-sync set."""
    slave_timeout_ms: int = field(default=3 * _SECOND_MS, metadata={"key": "slaveTimeout"})
    """How long a send waits for that before it is answered with FLUSH_SLAVE_TIMEOUT. The message is
    then stored by the master, and visible to consumers."""
    ha_transfer_batch_bytes: int = field(default=32 * _KIB, metadata={"key": "haTransferBatchSize"})
    """Most bytes of the log that a master sends in one frame."""
    ha_ahead_bytes: int = 4 * _MIB
    """Most bytes that a master sends to a slave ahead of its last report. A record that is larger
    is sent whole. RocketMQ has no such limit."""
    ha_send_heartbeat_interval_ms: int = field(
        default=5 * _SECOND_MS, metadata={"key": "haSendHeartbeatInterval"}
    )
    """How long either side sends nothing before it sends a heartbeat."""
    ha_housekeeping_interval_ms: int = field(
        default=20 * _SECOND_MS, metadata={"key": "haHousekeepingInterval"}
    )
    """How long either side receives nothing before it closes the connection."""
    ha_slaves_max: int = 32
    """Most connections of slaves to a master. Beyond it a connection that has not reported yet is
    closed in favour of a new one; if there is none, the new one is refused."""
    ha_flow_control_enable: bool = False
    """Whether `max_ha_transfer_byte_in_second` limits what a master sends to a slave."""
    max_ha_transfer_byte_in_second: int = 100 * _MIB
    """Most bytes per second that a master then sends to each slave."""
    sync_from_last_file: bool = False
    """Whether a slave with an empty log is sent only the last file of the log, as by Java's
    masters. If not, all of the log."""

    def __post_init__(self) -> None:
        if self.enable_remote_escape and not self.enable_slave_acting_master:
            raise ConfigError("enable_remote_escape needs enable_slave_acting_master")
        port = self.ha_listen_port
        if port is not None and not 0 <= port <= _PORT_MAX:
            raise ConfigError(f"ha_listen_port is {port}; it must be 0 to {_PORT_MAX}")
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        ratio = self.access_message_in_memory_max_ratio
        if not 0 <= ratio <= _PERCENT_MAX:
            raise ConfigError(
                f"access_message_in_memory_max_ratio is {ratio}; it must be 0 to {_PERCENT_MAX}"
            )
        if self.in_sync_replicas > 1:
            _check_replicas(self)
        if self.ha_transfer_batch_bytes > TRANSFER_BYTES_MAX:
            raise ConfigError(
                f"ha_transfer_batch_bytes is {self.ha_transfer_batch_bytes}; slaves accept at most "
                f"{TRANSFER_BYTES_MAX}"
            )
        self.allowed_slaves()  # raises ConfigError for what is no address
        try:
            if self.ha_master_address:
                parse_address(self.ha_master_address)
        except ConfigError as error:
            raise ConfigError(f"ha_master_address: {error}") from None
        _check_intervals(self)

    def allowed_slaves(self) -> Networks | None:
        """Return the networks of slaves; None allows all."""
        allowed = self.ha_allowed_addresses
        return Networks("ha_allowed_addresses", allowed) if allowed else None

    @property
    def waits_for_copies(self) -> bool:
        """Whether sends wait for slaves."""
        least = self.min_in_sync_replicas if self.enable_auto_in_sync_replicas else 1
        needed = max(self.in_sync_replicas, least)
        return self.broker_role is BrokerRole.SYNC_MASTER and needed > 1

    def check_without_controller(self) -> None:
        """Check that the options that protect messages have an effect without a controller.

        Raises:
            ConfigError: one has none.
        """
        counts = self.enable_auto_in_sync_replicas and (self.waits_for_copies or self.is_slave)
        if self.min_in_sync_replicas > 1 and not counts:
            raise ConfigError(
                f"min_in_sync_replicas is {self.min_in_sync_replicas}, but there is no in-sync set "
                "without a controller: set in_sync_replicas, or also enable_auto_in_sync_replicas "
                "and the broker_role SYNC_MASTER"
            )

    @property
    def has_pre_online(self) -> bool:
        """Whether a master takes back what has changed at its slaves, before it serves."""
        has_slaves = self.enable_slave_acting_master and self.total_replicas > 1
        return has_slaves and not self.skip_pre_online and not self.is_slave

    @property
    def accepts_slaves(self) -> bool:
        """Whether the broker listens for slaves."""
        has_port = self.ha_listen_port is not None or self.broker_role is not None
        return has_port and not self.is_slave

    @property
    def is_slave(self) -> bool:
        """Whether the broker copies the messages of a master."""
        return self.broker_role is BrokerRole.SLAVE


def _check_intervals(config: ReplicationConfig) -> None:
    """Check that each time-out is longer than the interval of what it waits for."""
    if config.broker_not_active_timeout_ms < 2 * config.broker_heartbeat_interval_ms:
        raise ConfigError(
            f"broker_not_active_timeout_ms is {config.broker_not_active_timeout_ms}; it must be "
            "at least twice broker_heartbeat_interval_ms, "
            f"{config.broker_heartbeat_interval_ms}"
        )
    if config.ha_housekeeping_interval_ms <= config.ha_send_heartbeat_interval_ms:
        raise ConfigError(
            f"ha_housekeeping_interval_ms is {config.ha_housekeeping_interval_ms}; it must be "
            f"more than ha_send_heartbeat_interval_ms, {config.ha_send_heartbeat_interval_ms}"
        )


def _check_replicas(config: ReplicationConfig) -> None:
    """Check that the copies that sends are to wait for are possible."""
    if config.broker_role not in (BrokerRole.SYNC_MASTER, BrokerRole.SLAVE):
        raise ConfigError(
            f"in_sync_replicas is {config.in_sync_replicas}, but sends wait for slaves only with "
            "broker_role SYNC_MASTER"
        )
    if config.in_sync_replicas > config.ha_slaves_max + 1:
        raise ConfigError(
            f"in_sync_replicas is {config.in_sync_replicas}; with ha_slaves_max "
            f"{config.ha_slaves_max} it must be at most {config.ha_slaves_max + 1}"
        )


_POSITIVE: Final = (
    "in_sync_replicas",
    "min_in_sync_replicas",
    "ha_max_time_slave_not_catchup_ms",
    "check_sync_state_set_period_ms",
    "slave_timeout_ms",
    "ha_transfer_batch_bytes",
    "ha_ahead_bytes",
    "ha_send_heartbeat_interval_ms",
    "ha_housekeeping_interval_ms",
    "ha_slaves_max",
    "max_ha_transfer_byte_in_second",
    "memory_bytes",
    "broker_heartbeat_interval_ms",
    "total_replicas",
    "sync_broker_member_group_period_ms",
)
