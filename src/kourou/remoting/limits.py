"""Limits of connections, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.protocol.frame import FRAME_SIZE_MAX

_KIB = 1024
_MIB = 1024 * _KIB


@documented
@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Bounds of the connections of one server or one pool. All are at least 1.

    Raises:
        ConfigError: a bound is below 1, or two of them contradict each other.
    """

    frame_bytes_max: int = FRAME_SIZE_MAX
    """Largest frame accepted, in bytes after the length field. A larger one closes the connection
    as soon as its length field is read."""

    header_bytes_max: int = 512 * _KIB
    """Largest frame header that a server accepts, in bytes; a larger one closes the connection. A
    header is decoded in one step. The longest header that a client needs carries the properties of
    a message: 32,767 bytes, each of which JSON may write as six."""

    output_bytes_max: int = 64 * _MIB
    """Bytes of output that one peer may leave unread. Above it, the connection is closed."""

    output_pause_bytes: int = _MIB
    """Bytes of unread output to one peer above which the connection pauses: a server reads no more
    requests from the peer, and a client's requests wait. It resumes at a quarter of this value."""

    output_bytes_total_max: int = 256 * _MIB
    """Bytes of unread output to all peers of one server. Above it, the connections with the most
    unread output are closed until the rest is within the limit."""

    partial_bytes_total_max: int = 256 * _MIB
    """Bytes of incomplete frames, over all connections. Above it, the connection whose incomplete
    frame is the oldest is closed."""

    frame_timeout_ms: int = 30_000
    """Time in ms that a frame may take from its first byte to its last. A frame that takes longer
    closes the connection."""

    idle_timeout_ms: int = field(
        default=120_000, metadata={"seconds_key": "serverChannelMaxIdleTimeSeconds"}
    )
    """Time in ms without a byte in either direction, after which a connection is closed; RocketMQ's
    serverChannelMaxIdleTimeSeconds and clientChannelMaxIdleTimeSeconds."""

    requests_waiting_max: int = field(default=65_535, metadata={"key": "clientAsyncSemaphoreValue"})
    """Requests to one peer that may be pending; one more is refused."""

    unanswered_requests_max: int = 65_535
    """Requests from one peer that may be unanswered; one more is answered SYSTEM_BUSY."""

    unanswered_bytes_max: int = 96 * _MIB
    """Frame bytes of unanswered requests from one peer. The default is above that of a broker's
    `pending_connection_bytes_max`, which is then reached first and has the clearer error text."""

    unanswered_bytes_total_max: int = 512 * _MIB
    """Frame bytes of unanswered requests from all peers of one server."""

    connections_max: int = 10_000
    """Open connections of one server; one more is closed immediately."""

    connect_timeout_ms: int = field(default=3_000, metadata={"key": "connectTimeoutMillis"})
    """Time in ms to establish a connection, TLS handshake included."""

    handshake_timeout_ms: int = 10_000
    """Time in ms that a TLS handshake may take at a server; Netty's default."""

    handshakes_max: int = 500
    """TLS handshakes that may be queued or in progress at one port of a server; one more connection
    is closed immediately. A handshake takes about two milliseconds of CPU time and 150 KiB. A
    handshake that the port cannot finish before its client times out is wasted work."""

    drain_timeout_ms: int = 1_000
    """Time in ms that queued output has to leave after the connection is closed by this side."""

    sweep_interval_ms: int = 1_000
    """Interval in ms at which the ages of connections and frames are checked; the timeouts above
    may fire this much late."""

    def __post_init__(self) -> None:
        for bound in fields(self):
            if getattr(self, bound.name) < 1:
                raise ConfigError(f"{bound.name} is {getattr(self, bound.name)}: must be above 0")
        if self.frame_bytes_max > FRAME_SIZE_MAX:
            raise ConfigError(
                f"frame_bytes_max is {self.frame_bytes_max}: peers accept at most {FRAME_SIZE_MAX}"
            )
        for name in (
            "output_bytes_max",
            "output_bytes_total_max",
            "partial_bytes_total_max",
            "unanswered_bytes_max",
            "unanswered_bytes_total_max",
        ):
            if getattr(self, name) < self.frame_bytes_max + 4:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}: one frame of {self.frame_bytes_max} bytes "
                    "and its length field must fit"
                )
