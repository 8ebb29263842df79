"""Limits of a gRPC server and of its connections, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.http2 import frames

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Http2Limits:
    """Bounds of one HTTP/2 connection.

    Raises:
        ConfigError: a bound is out of the range that HTTP/2 allows.
    """

    streams_max: int = 20_000
    """Open streams; one more is refused."""

    header_block_bytes_max: int = 64 * _KIB
    """Bytes of a compressed header block, in all its frames. More close the connection."""

    header_frames_max: int = 64
    """Frames of a header block. More close the connection."""

    header_list_bytes_max: int = 16 * _KIB
    """Bytes of a request's fields when decompressed, counted with 32 more for each field. A call
    with more ends with RESOURCE_EXHAUSTED."""

    stream_window_bytes: int = 256 * _KIB
    """Flow-control window of each stream: bytes that a client may send before the server has
    handled them. A larger request has its window opened when its size is known."""

    connection_window_bytes: int = 4 * _MIB
    """Flow-control window of the connection."""

    cheap_frames_burst: int = 10_000
    """Frames that cost the server work and the client little, such as pings, settings, resets and
    empty data, above those that `cheap_frames_per_s` and answered calls allow. More close the
    connection."""

    cheap_frames_per_s: int = 1_000
    """Such frames a second in the long run; each answered call allows one more."""

    def __post_init__(self) -> None:
        _check_positive(self)
        for name in ("stream_window_bytes", "connection_window_bytes"):
            value = getattr(self, name)
            if not frames.WINDOW_BYTES <= value <= frames.WINDOW_BYTES_MAX:
                raise ConfigError(
                    f"{name} is {value}: must be from {frames.WINDOW_BYTES} to "
                    f"{frames.WINDOW_BYTES_MAX}"
                )


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class GrpcLimits:
    """Bounds of one gRPC server.

    Raises:
        ConfigError: a bound is below its minimum, or two of them contradict each other.
    """

    http2: Http2Limits = field(default_factory=Http2Limits)
    """Bounds of each connection."""

    message_bytes_max: int = 130 * _MIB
    """Largest request message in bytes, decompressed; RocketMQ's grpcMaxInboundMessageSize. A call
    with a larger one ends with RESOURCE_EXHAUSTED."""

    inflated_bytes_max: int = 5 * _MIB
    """Largest request message in bytes that was compressed, when inflated: other calls wait while
    it is. RocketMQ's messages have up to 4 MiB, and its SDKs compress no requests. Above 512 KiB it
    may also have at most 32 times its compressed size. A call with a larger one ends with
    RESOURCE_EXHAUSTED."""

    open_calls_bytes_max: int = 256 * _MIB
    """Bytes of the fields of all open calls, counted as for `header_list_bytes_max`; those of an
    official SDK have about 1,000. For one more call, the connection with the most of them is
    closed, or that call ends with RESOURCE_EXHAUSTED if it is its own."""

    incomplete_bytes_max: int = 256 * _MIB
    """Bytes of incomplete request messages over all connections. Three quarters are for messages
    above `stream_window_bytes`, which wait for each other; a quarter for all others, the oldest of
    which fail with RESOURCE_EXHAUSTED above it."""

    incomplete_timeout_s: float = 30.0
    """Time in seconds after which an incomplete message above `stream_window_bytes` fails if
    another one waits for its memory."""

    partial_bytes_max: int = 64 * _MIB
    """Bytes of incomplete frames and header blocks over all connections. Above it, the connection
    whose incomplete frame is the oldest is closed."""

    output_pause_bytes: int = _MIB
    """Bytes of unread output to one client above which the connection pauses: nothing more is read
    from the client, and messages to it wait in their streams."""

    output_bytes_max: int = 64 * _MIB
    """Bytes of output that one client may leave unread. Above it, the connection is closed; so no
    response can be larger."""

    output_bytes_total_max: int = 256 * _MIB
    """Bytes of unread output to all clients. Above it, the connections with the most unread output
    are closed until the rest is within the limit."""

    connections_max: int = 10_000
    """Open connections; one more is closed at once."""

    idle_timeout_s: float = 120.0
    """Time in seconds without an open stream after which a connection is closed."""

    stalled_timeout_s: float = 30.0
    """Time in seconds after which a connection is closed that has sent an incomplete frame, or
    reads nothing of its output."""

    ping_interval_s: float = 120.0
    """Time in seconds without a byte from the client after which the server sends a ping if a
    stream is open."""

    ping_timeout_s: float = 20.0
    """Time in seconds to answer that ping. Without an answer, the connection is closed."""

    def __post_init__(self) -> None:
        _check_positive(self)
        if self.message_bytes_max > self.incomplete_bytes_max * 3 // 4:
            raise ConfigError(
                f"message_bytes_max is {self.message_bytes_max}: must be at most three quarters "
                f"of incomplete_bytes_max, which is {self.incomplete_bytes_max}"
            )


def _check_positive(limits: Http2Limits | GrpcLimits) -> None:
    for bound in fields(limits):
        value = getattr(limits, bound.name)
        if isinstance(value, int | float) and value <= 0:
            raise ConfigError(f"{bound.name} is {value}: must be above 0")
