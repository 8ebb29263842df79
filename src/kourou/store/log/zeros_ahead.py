"""Zeros ahead of the log's records, so that a sync has nothing but records to write.

A sync of what went into a hole also has to write where its new blocks are, and waits for the file
system's journal, with whoever else writes to that; one of what replaced zeros writes the data only.
Reserving blocks (fallocate) gains nothing, because that they hold data now has to be noted as well.
Beside a write of records some zeros follow at times, which the sync of the records takes along:

    | segment  records | zeros      | hole             |
                       ^ written    ^ zeros end

Half a MiB at once takes 0.1 ms to write and doubles what the device gets; it makes syncs of 1 to
64 KB 1.1 to 1.8 times as many, and those of 160 KB no more: where syncs take more than
`SMALL_BYTES`, none are written. Of that a tenth is left in a whole broker, where sends wait for
more than the sync. Figures: `bench/allocation.py`.

Everything is on the store's thread, and the zeros begin where nothing is written: they can never
replace a record. What a crash leaves of them reads as the hole they fill.

Source: for what it is good for DefaultMappedFile.warmMappedFile, apache/rocketmq 5.5.0, which does
that with whole segments, and writes through a mapping.
"""

from __future__ import annotations

from typing import Final

ZEROS: Final = bytes(512 * 1024)
"""Written at once, at most. Never touched, so that they take no memory."""

SMALL_BYTES: Final = 64 * 1024
"""What one sync takes at most where zeros are worth it. With 128 KiB, a broker that got 64 messages
of 1 KB a read took a twentieth fewer."""

_LEAST_AHEAD: Final = len(ZEROS) // 2


class ZerosAhead:
    """Decides when to write zeros, and where.

    Args:
        segment_bytes: the size of each segment.
    """

    __slots__ = ("_end", "_segment_bytes", "_synced_bytes")

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._end = 0
        self._synced_bytes = 0

    def forget(self, position: int) -> None:
        """Take it that there is a hole from `position` on."""
        self._end = position

    def synced(self, size: int) -> None:
        """Note how many bytes of records a sync has made durable."""
        self._synced_bytes = size

    def take(self, written: int) -> tuple[int, int]:
        """Return where zeros begin and how many are to be written, all in one segment; often 0.

        They count as written from now on.

        Args:
            written: where the records end, at least one of them in the segment.
        """
        if self._end - written >= _LEAST_AHEAD or self._synced_bytes > SMALL_BYTES:
            return written, 0
        start = max(self._end, written)
        last = written - 1
        segment_end = last - last % self._segment_bytes + self._segment_bytes
        size = min(len(ZEROS), segment_end - start)
        if size <= 0:
            return written, 0
        self._end = start + size
        return start, size
