"""Zeros written ahead of the log's records, so that a sync writes only the records.

A sync of data written into a hole also writes the metadata of the new blocks and waits for the file
system's journal, which other writers share. A sync of data that replaced zeros writes only the
data. Reserving blocks (fallocate) does not help, because the file system must then record that the
blocks are in use. So some writes of records also write zeros, which the same sync makes durable:

    | segment  records | zeros      | hole             |
                       ^ written    ^ zeros end

Half a MiB at once takes 0.1 ms to write and doubles the bytes written to the device. It increases
the rate of syncs of 1 to 64 KB by a factor of 1.1 to 1.8, and that of 160 KB syncs not at all: if
syncs exceed `SMALL_BYTES`, no zeros are written. In a whole broker the gain is a tenth, because
sends wait for more than the sync. Figures: `bench/allocation.py`.

Everything runs on the store's thread, and the zeros begin after the written records, so they can
never overwrite a record. Zeros that a crash leaves read the same as the hole they fill.

Source: DefaultMappedFile.warmMappedFile, apache/rocketmq 5.5.0, for the purpose; Java fills whole
segments, through a mapping.
"""

from __future__ import annotations

from typing import Final

ZEROS: Final = bytes(512 * 1024)
"""The most zeros of one write. The bytes are never modified, so they take no memory."""

SMALL_BYTES: Final = 64 * 1024
"""The largest sync for which zeros pay. With 128 KiB, a broker that received 64 messages of 1 KB a
read accepted a twentieth fewer."""

_LEAST_AHEAD: Final = len(ZEROS) // 2


class ZerosAhead:
    """Decides when and where to write zeros.

    Args:
        segment_bytes: the size of each segment.
    """

    __slots__ = ("_end", "_segment_bytes", "_synced_bytes")

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._end = 0
        self._synced_bytes = 0

    def reset(self, position: int) -> None:
        """Assume a hole from `position` on."""
        self._end = position

    def synced(self, size: int) -> None:
        """Record how many bytes of records the last sync made durable."""
        self._synced_bytes = size

    def next_zeros(self, written: int) -> tuple[int, int]:
        """Return the position and number of the zeros to write, all in one segment; often 0.

        They count as written from now on.

        Args:
            written: the end of the records, of which at least one is in the segment.
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
