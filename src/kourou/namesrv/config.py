"""The name server's options: defaults, units, ranges, and RocketMQ's key for each."""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.errors import ConfigError
from kourou.remoting.limits import ConnectionLimits


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig:
    """What a name server is told at start. Nothing here changes while it runs.

    Raises:
        ConfigError: a value is out of its range.
    """

    listen: str = field(default="127.0.0.1", metadata={"key": "bindAddress"})
    """The local address to listen on. Anyone who reaches it may register brokers: widen it with
    care. Java listens on all."""
    port: int = field(default=9876, metadata={"key": "listenPort"})
    """The TCP port to listen on; 0 takes a free one."""
    scan_interval_ms: int = field(default=5_000, metadata={"key": "scanNotActiveBrokerInterval"})
    """How often to look for brokers that fell silent, in ms: how late one is forgotten, at most."""
    broker_timeout_ms: int = 120_000
    """A broker that says nothing for so long, in ms, is forgotten; one may ask for another time
    when it registers."""
    brokers_max: int = 10_000
    """Broker addresses known at once; one more is refused."""
    topic_entries_max: int = 1_000_000
    """Topics known at once, each counted once for every broker that has it; a registration that
    brings more is refused. An entry takes about 300 bytes."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Bounds of the connections of brokers and clients."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}; it must be from 0 to 65535")
        for name in ("scan_interval_ms", "broker_timeout_ms", "brokers_max", "topic_entries_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
