"""Options of the name server: default, unit, range and RocketMQ's key of each; live changes.

Request 318 changes the options that are marked live.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError, NoPermissionError
from kourou.protocol.codes import ResponseCode
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.live_options import LiveOptions
from kourou.remoting.transport_config import TransportConfig

_LEAST: Final = {
    "scan_interval_ms": 1,
    "broker_timeout_ms": 1,
    "brokers_max": 1,
    "topic_entries_max": 1,
    "kv_config_bytes_max": 0,
    "wait_for_service_s": 0,
}


@documented
@dataclass(frozen=True, kw_only=True)
class NamesrvConfig:
    """Options of one name server. Fields marked `live` can be changed at run time by request 318.

    Raises:
        ConfigError: a value is out of its range.
    """

    listen: str = field(default="127.0.0.1", metadata={"key": "bindAddress"})
    """The local address to listen on. Any program that can connect to it may register brokers, so
    choose a wider address with care. Java listens on all addresses."""
    port: int = field(default=9876, metadata={"key": "listenPort"})
    """The TCP port to listen on; 0 chooses a free one."""
    scan_interval_ms: int = field(
        default=5_000, metadata={"key": "scanNotActiveBrokerInterval", "live": True}
    )
    """Interval between scans for expired brokers, in ms. A broker is removed at most this long
    after its timeout."""
    broker_timeout_ms: int = 120_000
    """A broker that sends no heartbeat and no registration for this long, in ms, is removed. A
    broker may name its own timeout when it registers."""
    brokers_max: int = 10_000
    """Maximum number of registered broker addresses; a registration beyond it is refused."""
    topic_entries_max: int = 1_000_000
    """Maximum number of topic entries, one for each topic and broker name; a registration that
    would exceed it is refused. An entry takes about 300 bytes."""
    kv_config_bytes_max: int = 16 * 1024**2
    """Maximum size of the whole key-value configuration in bytes, where each key and each namespace
    counts 200 more; a change beyond it is refused. Each change writes the whole configuration."""
    order_message_enable: bool = field(default=False, metadata={"live": True})
    """Whether routes include the queues that producers use for an ordered topic."""
    return_order_topic_config_to_broker: bool = field(default=True, metadata={"live": True})
    """Whether the answer to a broker's registration lists the ordered topics."""
    enable_all_topic_list: bool = field(default=True, metadata={"live": True})
    """Whether requests for the list of all topics are served."""
    enable_topic_list: bool = field(default=True, metadata={"live": True})
    """Whether requests for the topics of a cluster and of units are served."""
    delete_topic_with_broker_registration: bool = field(default=False, metadata={"live": True})
    """Whether a topic is removed from a broker's entries when the broker registers all its topics
    and this one is not among them. Otherwise it stays until an administrator deletes it or the
    broker leaves."""
    support_acting_master: bool = field(default=False, metadata={"live": True})
    """Whether routes show a slave as master if the master is lost and the slave allows it."""
    notify_min_broker_id_changed: bool = field(default=False, metadata={"live": True})
    """Whether the brokers of a broker name are notified when another one of them becomes the one
    with the lowest id."""
    need_wait_for_service: bool = field(default=False, metadata={"live": True})
    """Whether route requests are refused for the first `wait_for_service_s` after the start. Until
    all brokers have had time to register, a route may lack some queues of a topic."""
    wait_for_service_s: int = field(
        default=45, metadata={"key": "waitSecondsForService", "live": True}
    )
    """Time after the start during which route requests are refused, in seconds, if
    `need_wait_for_service` is set."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Limits of the connections of brokers and clients."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    """TLS, and the PROXY protocol of load balancers."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}; it must be from 0 to 65535")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")


BLACK_LIST: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})


class LiveConfig(LiveOptions[NamesrvConfig]):
    """The options of one running name server."""

    config_class = NamesrvConfig
    black_list = BLACK_LIST

    def refusal(self, key: str) -> NoPermissionError:
        return NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"{key} cannot be changed while the name server runs; options that can: "
            f"{', '.join(sorted(self.live_keys))}",
        )
