"""The name server's options: defaults, units, ranges, and RocketMQ's key for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.remoting.limits import ConnectionLimits
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
    """What a name server is told at start. Fields marked `live` can be changed by request 318.

    Raises:
        ConfigError: a value is out of its range.
    """

    listen: str = field(default="127.0.0.1", metadata={"key": "bindAddress"})
    """The local address to listen on. Anyone who reaches it may register brokers: widen it with
    care. Java listens on all."""
    port: int = field(default=9876, metadata={"key": "listenPort"})
    """The TCP port to listen on; 0 takes a free one."""
    scan_interval_ms: int = field(
        default=5_000, metadata={"key": "scanNotActiveBrokerInterval", "live": True}
    )
    """How often to look for brokers that fell silent, in ms: how late one is forgotten, at most."""
    broker_timeout_ms: int = 120_000
    """A broker that says nothing for so long, in ms, is forgotten; one may ask for another time
    when it registers."""
    brokers_max: int = 10_000
    """Broker addresses known at once; one more is refused."""
    topic_entries_max: int = 1_000_000
    """Topics known at once, each counted once for every broker that has it; a registration that
    brings more is refused. An entry takes about 300 bytes."""
    kv_config_bytes_max: int = 16 * 1024**2
    """Bytes of all key-value configuration, 200 for each key and namespace included; more is
    refused. Each change writes all of it."""
    order_message_enable: bool = field(default=False, metadata={"live": True})
    """Whether routes tell which queues of an ordered topic producers use."""
    return_order_topic_config_to_broker: bool = field(default=True, metadata={"live": True})
    """Whether brokers that register are told which topics are ordered."""
    enable_all_topic_list: bool = field(default=True, metadata={"live": True})
    """Whether anybody may list all topics."""
    enable_topic_list: bool = field(default=True, metadata={"live": True})
    """Whether anybody may list the topics of a cluster, of the system and of units."""
    delete_topic_with_broker_registration: bool = field(default=False, metadata={"live": True})
    """Whether a broker's topics go when it registers all its topics without them; else they stay
    until an administrator deletes them or the broker leaves."""
    support_acting_master: bool = field(default=False, metadata={"live": True})
    """Whether routes show a slave as master where the master is lost and the slave allows it."""
    notify_min_broker_id_changed: bool = field(default=False, metadata={"live": True})
    """Whether the brokers of a name are told when another of them has the least id."""
    need_wait_for_service: bool = field(default=False, metadata={"live": True})
    """Whether no route is told in the first `wait_for_service_s`: until all brokers had the time
    to register, a route may lack some of a topic's queues."""
    wait_for_service_s: int = field(
        default=45, metadata={"key": "waitSecondsForService", "live": True}
    )
    """How long after the start no route is told, in seconds, if `need_wait_for_service`."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Bounds of the connections of brokers and clients."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    """TLS, and load balancers in front."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}; it must be from 0 to 65535")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")
