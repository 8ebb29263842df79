"""Options of controller mode, with RocketMQ's keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.remoting.network import parse_address

_SECOND_MS: Final = 1_000
_PRIORITY_MAX: Final = 0x7FFF_FFFF


@documented
@dataclass(frozen=True, kw_only=True)
class ControllerModeConfig:
    """Options of a broker whose role controllers decide.

    Raises:
        ConfigError: a value is out of its range, or times contradict each other.
    """

    enable_controller_mode: bool = False
    """Whether controllers decide which replica of the broker name is its master. `broker_id` and
    `broker_role` are then not set."""
    controller_addr: tuple[str, ...] = ()
    """The addresses of the controllers, `host:port`, joined by `;`."""
    controller_heartbeat_timeout_ms: int = field(
        default=3 * _SECOND_MS, metadata={"key": "controllerHeartBeatTimeoutMills"}
    )
    """How long after its last heartbeat the controllers take the broker for lost, and elect another
    master. RocketMQ's default is 10 s."""
    controller_heartbeat_interval_ms: int = 500
    """How often the broker sends a heartbeat to the leading controller. RocketMQ sends one each
    second."""
    controller_lease_ms: int = 2 * _SECOND_MS
    """How long a master serves after the controller has confirmed it; counted from before the
    request left. RocketMQ's masters have no such limit."""
    controller_failsafe: bool = False
    """Whether a master serves on while no controller answers, as long as every member of its
    in-sync set confirms it. To be set at all replicas. Before an unclean election, the old master
    must be stopped."""
    sync_broker_metadata_period_ms: int = field(
        default=1 * _SECOND_MS, metadata={"key": "syncBrokerMetadataPeriod"}
    )
    """How often the broker asks who is master, beside the controller's notifications. RocketMQ's
    default is 5 s."""
    broker_election_priority: int = _PRIORITY_MAX
    """Among replicas with equal logs, the one with the smallest number becomes master."""

    def __post_init__(self) -> None:
        if self.enable_controller_mode and not self.controller_addr:
            raise ConfigError(
                "controller_addr is empty; with enable_controller_mode it must name a controller"
            )
        for address in self.controller_addr:
            try:
                parse_address(address)
            except ConfigError as error:
                raise ConfigError(f"controller_addr: {error}") from None
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.broker_election_priority <= _PRIORITY_MAX:
            raise ConfigError(
                f"broker_election_priority is {self.broker_election_priority}; it must be 0 to "
                f"{_PRIORITY_MAX}"
            )
        if 2 * self.controller_heartbeat_interval_ms > self.controller_lease_ms:
            raise ConfigError(
                f"controller_lease_ms is {self.controller_lease_ms}; it must be at least twice "
                f"controller_heartbeat_interval_ms, {self.controller_heartbeat_interval_ms}"
            )
        if self.controller_lease_ms >= self.controller_heartbeat_timeout_ms:
            raise ConfigError(
                f"controller_lease_ms is {self.controller_lease_ms}; it must be less than "
                f"controller_heartbeat_timeout_ms, {self.controller_heartbeat_timeout_ms}: "
                "otherwise two masters could serve at once"
            )


_POSITIVE: Final = (
    "controller_heartbeat_timeout_ms",
    "controller_heartbeat_interval_ms",
    "controller_lease_ms",
    "sync_broker_metadata_period_ms",
)
