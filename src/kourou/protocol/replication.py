"""Frames of the classic replication protocol: commit log bytes one way, positions the other.

A slave connects to the HA port of its master. There is no handshake and no request code:

    slave -> master     report        position(8)
    master -> slave     transfer      position(8) size(4) bytes(size)
    master -> slave     heartbeat     position(8) 0(4)

Integers are big-endian. A report is the position up to which the slave has the log. The first one
also asks for the bytes from there on; 0 asks for the log from a start that the master chooses. A
transfer carries the log's bytes from its position on, and may end within a record. The position of
a heartbeat is that of the next transfer.

Source: DefaultHAConnection.WriteSocketService and ReadSocketService,
DefaultHAClient.dispatchReadRequest and reportSlaveMaxOffset, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from kourou.errors import FrameTooLargeError, MalformedFrameError
from kourou.protocol.frame_pieces import FramePieces

_REPORT: Final = Struct(">q")
_HEAD: Final = Struct(">qi")

REPORT_BYTES: Final = _REPORT.size
HEAD_BYTES: Final = _HEAD.size
"""Size of a transfer without its log bytes, and of a heartbeat."""
TRANSFER_BYTES_MAX: Final = 4 * 1024 * 1024 - HEAD_BYTES
"""Most log bytes of one transfer: Java's slave reads into a buffer of 4 MiB."""


class Transfer(NamedTuple):
    """Bytes of the master's log.

    Attributes:
        position: position of the first byte.
        data: the bytes; empty in a heartbeat. Those of a decoder are a view of what it was fed.
    """

    position: int
    data: bytes | memoryview


def encode_report(position: int) -> bytes:
    """Return the frame by which a slave reports that it has the log up to `position`."""
    return _REPORT.pack(position)


def encode_transfer_head(position: int, size: int) -> bytes:
    """Return the start of a transfer, which `size` log bytes must follow; 0 for a heartbeat."""
    return _HEAD.pack(position, size)


class ReportDecoder:
    """Decodes the reports of one slave; holds at most 7 bytes."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | memoryview) -> list[int]:
        """Return the positions of the reports that `data` completes, oldest first.

        All are returned, not only the last, because the first one of a connection selects the
        start.

        Raises:
            MalformedFrameError: a position is negative.
        """
        received = self._rest + data
        whole = len(received) - len(received) % REPORT_BYTES
        self._rest = received[whole:]
        positions = [position for (position,) in _REPORT.iter_unpack(received[:whole])]
        for position in positions:
            if position < 0:
                raise MalformedFrameError(f"a slave reported the negative log position {position}")
        return positions


class TransferDecoder:
    """Decodes the transfers and heartbeats of one master.

    Holds one incomplete frame: at most `data_bytes_max` and a head.
    """

    __slots__ = ("_data_bytes_max", "_pieces", "_transfers")

    def __init__(self, data_bytes_max: int = TRANSFER_BYTES_MAX) -> None:
        """Begin at the start of a frame; refuse transfers of more than `data_bytes_max`."""
        self._data_bytes_max = data_bytes_max
        self._transfers: list[Transfer] = []
        self._pieces = FramePieces(self._take)

    def feed(self, data: bytes | memoryview) -> list[Transfer]:
        """Return the transfers and heartbeats that `data` completes, oldest first.

        Raises:
            MalformedFrameError: a position or a size is negative.
            FrameTooLargeError: a transfer exceeds the limit.
        """
        self._transfers = []
        self._pieces.feed(data)
        return self._transfers

    def _take(self, data: memoryview) -> int:
        if len(data) < HEAD_BYTES:
            return HEAD_BYTES
        position, size = _HEAD.unpack_from(data)
        if position < 0 or size < 0:
            raise MalformedFrameError(
                f"the master sent {size} bytes of its log from position {position}; neither "
                "can be negative"
            )
        if size > self._data_bytes_max:
            raise FrameTooLargeError(size, self._data_bytes_max)
        end = HEAD_BYTES + int(size)
        if end <= len(data):
            self._transfers.append(Transfer(position, data[HEAD_BYTES:end]))
        return end
