"""Verifying the extension units that the entries of one consume queue name."""

from __future__ import annotations

from typing import Final

from kourou.disk import Disk
from kourou.store.paths import extension_directory
from kourou.store.queues.queue_extension import UNIT_BYTES_MAX, decode_unit, unit_position
from kourou.store.state.store_sizes import log_files
from kourou.store.tools.findings import Finding

_READ_BYTES: Final = 16 * UNIT_BYTES_MAX


class UnitCheck:
    """The units of one queue.

    Args:
        disk: where the files are.
        topic: the queue's.
        queue_id: its number.

    Attributes:
        has_files: whether there are any.
    """

    def __init__(self, disk: Disk, topic: str, queue_id: int) -> None:
        self._disk = disk
        self._directory = extension_directory(topic, queue_id)
        files = [file for file in log_files(disk, self._directory) if file.size]
        self._step = files[0].size if files else 0
        self.has_files = bool(files)
        self._read = ("", 0, b"")  # of which file, from where, and what

    def find(self, queue_offset: int, address: int, tags_code: int | None) -> Finding | None:
        """Return what is wrong with the unit of an entry; None if nothing is.

        Args:
            queue_offset: of the entry.
            address: what the entry has for a tags code.
            tags_code: what the unit should say; None if that is not known.
        """
        position = unit_position(address)
        start = position - position % self._step
        name, at = f"{self._directory}/{start:020d}", position - start
        try:
            unit = decode_unit(self._bytes_at(name, at))
        except OSError:
            unit = None
        if unit is None:
            problem = "no whole extension unit; all subscribers get the message"
        elif tags_code is not None and unit.tags_code != tags_code:
            problem = f"the unit has tags code {unit.tags_code}, and should have {tags_code}"
        else:
            return None
        return Finding(name, at, f"offset {queue_offset}: {problem}")

    def _bytes_at(self, name: str, at: int) -> bytes:
        """Return bytes from there on, at least a whole unit's; fewer at the end of the file."""
        file, start, data = self._read
        if file != name or not start <= at <= start + len(data) - UNIT_BYTES_MAX:
            start, data = at, self._disk.read(name, at, _READ_BYTES)
            self._read = (name, start, data)
        return data[at - start : at - start + UNIT_BYTES_MAX]
