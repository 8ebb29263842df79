"""Progress of one slave, as its master sees it: the next bytes to send, and what it has reported.

Pure. The first report of a connection selects the position from which the log is sent; later ones
acknowledge. A slave must not acknowledge what it was not sent: it then has another log, or a longer
one, and counting it as a copy would be wrong.

Source: DefaultHAConnection.java, apache/rocketmq 5.5.0, which accepts any position.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.errors import ReplicationRefusedError

UNKNOWN: Final = -1
"""A position before the first report."""


class LogRange(NamedTuple):
    """The bytes of the log that may be sent.

    Attributes:
        first: position of the first byte.
        end: the end of the bytes that may leave.
        segment_bytes: size of the log's files.
    """

    first: int
    end: int
    segment_bytes: int


class SlaveProgress:
    """Positions of one slave.

    Attributes:
        sent: the end of the bytes that were sent; `UNKNOWN` before the first report.
        acknowledged: the highest reported position.
    """

    __slots__ = (
        "_ahead_bytes",
        "_from_last_file",
        "_piece_bytes",
        "_start",
        "acknowledged",
        "sent",
    )

    def __init__(self, *, piece_bytes: int, ahead_bytes: int, from_last_file: bool) -> None:
        """Wait for the first report.

        Args:
            piece_bytes: most bytes that are sent at once.
            ahead_bytes: most bytes that are sent and not acknowledged.
            from_last_file: whether an empty slave gets only the last file of the log.
        """
        self._piece_bytes = piece_bytes
        self._ahead_bytes = ahead_bytes
        self._from_last_file = from_last_file
        self._start = UNKNOWN
        self.sent = UNKNOWN
        self.acknowledged = UNKNOWN

    def begin_at_last_file(self) -> None:
        """Send only the last file of the log if the slave turns out to be empty."""
        self._from_last_file = True

    def on_report(self, position: int, log: LogRange) -> None:
        """Take a report.

        Raises:
            ReplicationRefusedError: the slave reports bytes that it cannot have from this log.
        """
        if self.sent == UNKNOWN:
            self._begin(position, log)
        elif position > self.sent:
            raise ReplicationRefusedError(
                f"it reports log position {position}, but was sent the log only up to "
                f"{self.sent}: its log is longer than this one, or it speaks another protocol"
            )
        self.acknowledged = max(self.acknowledged, position)

    def _begin(self, position: int, log: LogRange) -> None:
        if position > log.end:
            raise ReplicationRefusedError(
                f"it asks for the log from position {position}, but the log ends at {log.end}: "
                "its log is longer than this one, or it speaks another protocol"
            )
        start = position
        if position == 0:
            start = log.first
            if self._from_last_file:
                start = max(start, log.end - log.end % log.segment_bytes)
        if start < log.first:
            raise ReplicationRefusedError(
                f"it asks for the log from position {position}, but the log begins at "
                f"{log.first}, because older messages have expired: start the slave with an "
                "empty store"
            )
        self._start = self.sent = start

    @property
    def ahead_from(self) -> int:
        """The position up to which nothing needs to be sent any more."""
        return max(self.acknowledged, self._start)

    @property
    def is_ahead(self) -> bool:
        """Whether the slave must report before it is sent more, unless within a large record."""
        return self.sent - self.ahead_from >= self._ahead_bytes

    @property
    def has_reported_all(self) -> bool:
        """Whether the slave has reported all that it was sent."""
        return self.sent != UNKNOWN and self.sent == self.ahead_from

    def next_piece(self, log: LogRange, unit_bytes: int = 0) -> tuple[int, int] | None:
        """Return position and size of the next bytes to send; None if there are none.

        Args:
            log: the bytes that may be sent.
            unit_bytes: size of the record at `ahead_from`, if known. A slave that reports whole
                records needs all of it, even if it exceeds the limit of unacknowledged bytes.
        """
        if self.sent == UNKNOWN:
            return None
        limit = min(log.end, self.ahead_from + max(self._ahead_bytes, unit_bytes))
        segment_end = self.sent - self.sent % log.segment_bytes + log.segment_bytes
        size = min(self._piece_bytes, limit - self.sent, segment_end - self.sent)
        return (self.sent, size) if size > 0 else None


class TransferRate:
    """Limit of the bytes per second to one slave: a bucket for the bytes of one second."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        """Begin with a full bucket at loop time `now_s`."""
        self._bytes_per_s = bytes_per_s
        self._left = float(bytes_per_s)
        self._filled_at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before the next bytes may be sent; 0 if they may be now."""
        gained = max(0.0, now_s - self._filled_at_s) * self._bytes_per_s
        self._left = min(float(self._bytes_per_s), self._left + gained)
        self._filled_at_s = now_s
        # A transfer may exceed what is left, so that each is sent whole; later ones then wait.
        return 0.0 if self._left > 0 else -self._left / self._bytes_per_s + 1e-3

    def count(self, size: int) -> None:
        """Count `size` sent bytes."""
        self._left -= size
