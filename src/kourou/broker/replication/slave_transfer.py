"""The slave's side of a transfer: compares the end of its log with its master's, then appends.

Pure. A slave first compares the end of its own log with the master's: it asks for the log from some
bytes before its end, and appends only if these are equal. So it never continues another log, of
another cluster or of a master that has lost messages.

    received                                     action
    bytes up to the own end                      compare; refuse the master if they differ
    bytes from the own end on                    append
    a heartbeat before the own end is reached    refuse: the master's log is shorter
    bytes of another position                    refuse

Source: DefaultHAClient.dispatchReadRequest, apache/rocketmq 5.5.0, which compares positions only.
"""

from __future__ import annotations

from typing import Final

from kourou.errors import ReplicationRefusedError
from kourou.protocol.replication import Transfer

COMPARED_BYTES: Final = 64 * 1024
"""Most bytes at the end of the log that are compared."""
COMPARED_BYTES_CONTROLLED: Final = 256
"""The same in controller mode, where a slave that is refused is no copy: enough to tell two
clusters apart, and few enough that a start has verified most of them."""


def compared_from(end: int, segment_bytes: int, size: int) -> int:
    """Return the position from which a log that ends at `end` is compared: in its last segment.

    At most `size` bytes are. A log that ends with a segment is not compared: the bytes that fill a
    segment after its last record may differ.
    """
    start = max(end - end % segment_bytes, end - size)
    return max(start, 1) if end else 0  # a report of 0 is that of an empty log


class SlaveTransfer:
    """One connection to a master.

    Attributes:
        position: of the next byte to receive; before the first transfer, the first report.
        is_compared: whether the own log is known to continue the master's.
    """

    __slots__ = ("_end", "_start", "_tail", "position")

    def __init__(self, end: int, tail: bytes) -> None:
        """Begin with an own log that ends at `end` with the bytes `tail`, which are compared."""
        self._end = end
        self._tail = tail
        self._start = self.position = end - len(tail)

    @property
    def is_compared(self) -> bool:
        return self.position >= self._end

    @property
    def compared(self) -> int:
        """The position up to which the own log is known to be that of the master."""
        return min(self.position, self._end)

    def on_transfer(self, transfer: Transfer) -> tuple[int, bytes | memoryview]:
        """Take a transfer or heartbeat; return the position of bytes to append, and these.

        Raises:
            ReplicationRefusedError: the logs do not match.
        """
        position, data = transfer
        if not data:
            self._check_heartbeat(position)
            return self.position, b""
        if position != self.position:
            if self._end or self.position:
                raise ReplicationRefusedError(
                    f"the master sent its log from position {position}; {self.position} is next"
                )
            self._end = self._start = position  # an empty log begins where the master says
        own = self._tail[position - self._start :][: len(data)] if position < self._end else b""
        if data[: len(own)] != own:
            at = next(at for at, byte in enumerate(own) if byte != data[at])
            raise ReplicationRefusedError(
                f"its log differs from the slave's at position {position + at}, before the slave's "
                f"end at {self._end}: they belong to different brokers, or the master has lost "
                "messages. Start the slave with an empty store to copy the master's"
            )
        self.position = position + len(data)
        return position + len(own), data[len(own) :]

    def _check_heartbeat(self, position: int) -> None:
        if not self.is_compared and position < self._end:
            raise ReplicationRefusedError(
                f"its log ends at {position}, the slave's at {self._end}: the master has lost "
                "messages, or is that of another cluster"
            )
