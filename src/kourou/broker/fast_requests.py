"""Base of fast paths of single requests, which are answered one by one."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Final

from kourou.broker.decline_runs import CUT_OFF, DeclineRuns
from kourou.protocol.frame import HEADER_AT
from kourou.remoting.connection import Connection

_SIZES: Final = struct.Struct(">II").unpack_from


class FastRequests(ABC):
    """Serves frames of some request codes; a `FastPath` of connections.

    Attributes:
        declined: requests left to the general path, by reason; "skipped" after a run of declined
            ones.
    """

    def __init__(self, codes: Sequence[int], frame_bytes_max: int) -> None:
        """Serve requests of these codes in frames of at most `frame_bytes_max`."""
        self._starts = tuple([b'{"code":%d,' % code for code in codes])
        self._frame_bytes_max = frame_bytes_max
        self.declined: Counter[str] = Counter()
        self._decline_runs = DeclineRuns(self.declined)

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        """Serve the frame at `start`; return its end, or `start` if the path does not accept it."""
        if not buffer.startswith(self._starts, start + HEADER_AT, end):
            return start
        if self._decline_runs.runs and self._decline_runs.skips(connection):
            return start
        size, header_size = _SIZES(buffer, start)
        next_at: int = start + 4 + size
        reason: str | None
        if next_at > end:
            reason = CUT_OFF
        elif size > self._frame_bytes_max or size > connection.limits.frame_bytes_max:
            reason = "size"
        elif header_size > size - 4:  # of another serialization, or malformed
            reason = "header"
        else:
            header_end = start + HEADER_AT + header_size
            reason = self._serve(connection, buffer, start, header_end, next_at)
        if reason is None:
            return next_at
        self._decline_runs.note(connection, reason)
        self.declined[reason] += 1
        return start

    @abstractmethod
    def _serve(
        self, connection: Connection, buffer: bytearray, start: int, header_end: int, end: int
    ) -> str | None:
        """Serve a complete frame, whose header is JSON.

        Args:
            connection: of the client.
            buffer: holds the frame.
            start: the first byte of the frame.
            header_end: the end of its header.
            end: its end.

        Returns:
            None if it is served; the reason, with no effect, if the general path must serve it.
        """
