"""Checks the extension units that are named by the entries of one consume queue."""

from __future__ import annotations

from typing import Final

from kourou.disk import Disk
from kourou.store.paths import extension_directory
from kourou.store.queues.queue_extension import UNIT_BYTES_MAX, decode_unit, unit_position
from kourou.store.state.file_sizes import log_files
from kourou.store.tools.findings import Finding

_READ_BYTES: Final = 16 * UNIT_BYTES_MAX


class UnitCheck:
    """Checks the extension units of one queue.

    Attributes:
        has_files: whether the queue has extension files.
    """

    def __init__(self, disk: Disk, topic: str, queue_id: int) -> None:
        self._disk = disk
        self._directory = extension_directory(topic, queue_id)
        files = [file for file in log_files(disk, self._directory) if file.size]
        self._step = files[0].size if files else 0
        self.has_files = bool(files)
        self._read = ("", 0, b"")  # last read: file, offset, bytes

    def find(self, queue_offset: int, address: int, tags_code: int | None) -> Finding | None:
        """Check the unit of an entry; return None if it is correct.

        Args:
            queue_offset: of the entry.
            address: the unit's address, which the entry holds in its field for the tags code.
            tags_code: the tags code that the unit must have; None if unknown.
        """
        position = unit_position(address)
        start = position - position % self._step
        name, at = f"{self._directory}/{start:020d}", position - start
        try:
            unit = decode_unit(self._bytes_at(name, at))
        except OSError:
            unit = None
        if unit is None:
            problem = "no valid extension unit; the message is delivered to all subscribers"
        elif tags_code is not None and unit.tags_code != tags_code:
            problem = f"the unit has tags code {unit.tags_code}, must have {tags_code}"
        else:
            return None
        return Finding(name, at, f"offset {queue_offset}: {problem}")

    def _bytes_at(self, name: str, at: int) -> bytes:
        """Return bytes for the longest unit from `at` on; fewer at the end of the file."""
        file, start, data = self._read
        if file != name or not start <= at <= start + len(data) - UNIT_BYTES_MAX:
            start, data = at, self._disk.read(name, at, _READ_BYTES)
            self._read = (name, start, data)
        return data[at - start : at - start + UNIT_BYTES_MAX]
