"""Every bound of a connection, with its default and its name."""

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
    """Largest frame taken, in bytes after the length field. A larger one is refused as soon as its
    length field is read, and the connection closed."""

    header_bytes_max: int = 512 * _KIB
    """Largest header of a frame that a server takes; the connection of a larger one is closed. A
    header is decoded at once. The longest that a client needs has the properties of a message,
    32,767 bytes, each of which JSON may write in six."""

    output_bytes_max: int = 64 * _MIB
    """Bytes that may wait for one peer to read them. A peer that lets more gather is closed."""

    output_pause_bytes: int = _MIB
    """Bytes that may wait for one peer before it has to read: a server takes no more requests from
    it, and a client's own requests wait, until a quarter of them is left."""

    output_bytes_total_max: int = 256 * _MIB
    """The same for all peers of one server together. Above it, the connections whose peers have
    left the most unread are closed, until the rest fits."""

    partial_bytes_total_max: int = 256 * _MIB
    """Bytes of frames not whole yet, over all connections. Above it, the connection that has been
    sending its frame for the longest time is closed."""

    frame_timeout_ms: int = 30_000
    """Time in ms from the first byte of a frame to its last. A peer that needs longer is closed."""

    idle_timeout_ms: int = field(
        default=120_000, metadata={"seconds_key": "serverChannelMaxIdleTimeSeconds"}
    )
    """Time in ms without a byte in either direction, after which a connection is closed; RocketMQ's
    serverChannelMaxIdleTimeSeconds and clientChannelMaxIdleTimeSeconds."""

    requests_waiting_max: int = field(default=65_535, metadata={"key": "clientAsyncSemaphoreValue"})
    """Requests to one peer that wait for an answer; one more is refused."""

    unanswered_requests_max: int = 65_535
    """Requests from one peer that we have not answered; one more is answered SYSTEM_BUSY."""

    unanswered_bytes_max: int = 96 * _MIB
    """Bytes of their frames. More than a broker's `pending_connection_bytes_max`, which refuses
    with a better reason."""

    unanswered_bytes_total_max: int = 512 * _MIB
    """The same for all peers of one server together."""

    connections_max: int = 10_000
    """Connections of one server; one more is closed at once."""

    connect_timeout_ms: int = field(default=3_000, metadata={"key": "connectTimeoutMillis"})
    """Time in ms for a connection to be made, its TLS handshake included."""

    handshake_timeout_ms: int = 10_000
    """Time in ms that a client's TLS handshake may take at a server; Netty's default."""

    handshakes_max: int = 500
    """Handshakes of TLS clients that wait or are under way at one port of a server; one more client
    is closed at once. One takes about two milliseconds of a processor and 150 KiB: more of them
    than the port can finish within their clients' patience would be work for nothing."""

    drain_timeout_ms: int = 1_000
    """Time in ms that output already queued has to leave when we close a connection."""

    sweep_interval_ms: int = 1_000
    """Time in ms between two looks at the ages of connections and frames: how late they may end."""

    def __post_init__(self) -> None:
        for bound in fields(self):
            if getattr(self, bound.name) < 1:
                raise ConfigError(f"{bound.name} is {getattr(self, bound.name)}: must be above 0")
        if self.frame_bytes_max > FRAME_SIZE_MAX:
            raise ConfigError(
                f"frame_bytes_max is {self.frame_bytes_max}: peers take at most {FRAME_SIZE_MAX}"
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
