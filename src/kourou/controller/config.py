"""Options of the controller: default, unit, range and RocketMQ's key of each; live changes.

Request 1009 changes the options that are marked live.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError, NoPermissionError
from kourou.model.route import WILDCARD_HOSTS
from kourou.protocol.codes import ResponseCode
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.live_options import LiveOptions
from kourou.remoting.network import parse_address
from kourou.remoting.transport_config import TransportConfig

_LEAST: Final = {
    "scan_interval_ms": 10,
    "heartbeat_timeout_ms": 1,
    "lease_ms_max": 1,
    "broker_sets_max": 1,
    "replicas_max": 1,
}


@documented
@dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """Options of one controller. Fields marked `live` can be changed at run time by request 1009.

    Raises:
        ConfigError: a value is out of its range.
    """

    listen: str = field(default="127.0.0.1", metadata={"key": "bindAddress"})
    """The local address to listen on. Any program that can connect to it may elect masters, so
    choose a wider address with care. Java listens on all addresses."""
    port: int = field(default=19876, metadata={"key": "listenPort"})
    """The TCP port to listen on; 0 chooses a free one."""
    advertise: str | None = None
    """The address, `host:port`, at which brokers and the other controllers find this one. None: the
    address on which it listens."""
    controller_id: str | None = None
    """Distinguishes this controller from the others. None: its address; `n0` for a single one."""
    controller_group: str = "kourou"
    """The name of the controllers' group, which tools show."""
    scan_interval_ms: int = field(
        default=500, metadata={"key": "scanNotActiveBrokerInterval", "live": True}
    )
    """Interval between scans for dead masters, in ms. A new master is elected at most this long
    after the timeout of the old one. Java: 5000."""
    heartbeat_timeout_ms: int = field(default=10_000, metadata={"live": True})
    """A broker that sends no heartbeat for this long, in ms, is dead. Brokers may name their own
    timeout (`controllerHeartBeatTimeoutMills`)."""
    lease_ms_max: int = 3_000
    """Longest timeout, in ms, of a broker whose heartbeats are answered. For this long a new
    leading controller elects nobody: an earlier one may have confirmed a master until then."""
    notify_broker_role_changed: bool = field(default=True, metadata={"live": True})
    """Whether the brokers of a set are notified of an election. Otherwise they learn of it when
    they next ask."""
    elections_paused: bool = field(default=False, metadata={"live": True})
    """Whether a dead master is not replaced, as while a cluster is stopped on purpose. Brokers and
    tools can still ask for elections. A change lasts until the controller stops."""
    broker_sets_max: int = 10_000
    """Maximum number of broker sets; a broker of one more set is refused."""
    replicas_max: int = 100
    """Maximum number of replicas of a broker set; one more is refused."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Limits of the connections of brokers and tools."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    """TLS of the port, and of connections to brokers (`tls_enable`); the PROXY protocol."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}; it must be from 0 to 65535")
        if self.advertise is not None:
            parse_address(self.advertise)
        elif self.listen in WILDCARD_HOSTS:
            raise ConfigError(
                f"listen is {self.listen!r}: set advertise (--advertise) to the address at which "
                "brokers find this controller, host:port"
            )
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")


class LiveConfig(LiveOptions[ControllerConfig]):
    """The options of one running controller."""

    config_class = ControllerConfig
    black_list = frozenset({"configBlackList", "configStorePath", "rocketmqHome"})

    def refusal(self, key: str) -> NoPermissionError:
        return NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"{key} cannot be changed while the controller runs; options that can: "
            f"{', '.join(sorted(self.live_keys))}",
        )
