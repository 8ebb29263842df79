"""Options of replication, with RocketMQ's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.protocol.replication import TRANSFER_BYTES_MAX

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_SECOND_MS: Final = 1_000
_PORT_MAX: Final = 65_535


@documented
@dataclass(frozen=True, kw_only=True)
class ReplicationConfig:
    """Options of replication by RocketMQ's classic protocol.

    Raises:
        ConfigError: a value is out of its range.
    """

    ha_listen_port: int | None = None
    """The TCP port at which slaves copy the log of a master; 0 takes `listenPort` + 1. Without it
    the broker accepts no slaves; Java always opens it. There is no access control: every program
    that can reach the port may copy all messages."""
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
        port = self.ha_listen_port
        if port is not None and not 0 <= port <= _PORT_MAX:
            raise ConfigError(f"ha_listen_port is {port}; it must be 0 to {_PORT_MAX}")
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.ha_transfer_batch_bytes > TRANSFER_BYTES_MAX:
            raise ConfigError(
                f"ha_transfer_batch_bytes is {self.ha_transfer_batch_bytes}; slaves accept at most "
                f"{TRANSFER_BYTES_MAX}"
            )
        if self.ha_housekeeping_interval_ms <= self.ha_send_heartbeat_interval_ms:
            raise ConfigError(
                f"ha_housekeeping_interval_ms is {self.ha_housekeeping_interval_ms}; it must be "
                f"more than ha_send_heartbeat_interval_ms, {self.ha_send_heartbeat_interval_ms}"
            )

    @property
    def accepts_slaves(self) -> bool:
        """Whether the broker listens for slaves."""
        return self.ha_listen_port is not None


_POSITIVE: Final = (
    "ha_transfer_batch_bytes",
    "ha_ahead_bytes",
    "ha_send_heartbeat_interval_ms",
    "ha_housekeeping_interval_ms",
    "ha_slaves_max",
    "max_ha_transfer_byte_in_second",
)
