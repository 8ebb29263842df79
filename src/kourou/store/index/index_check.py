"""Verifies the files of the key index against the log when a store opens.

The index is derived data: a file that fails is rebuilt from the log, with all later ones.

Source: IndexService.load, apache/rocketmq 5.5.0, which compares times only.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from kourou.disk import Disk
from kourou.errors import CorruptRecordError
from kourou.store.index.index_file import (
    IndexFile,
    IndexHeader,
    IndexLayout,
    is_empty,
    read_header,
)
from kourou.store.index.index_keys import KeyHashes
from kourou.store.index.index_log import LogCursor, record_time
from kourou.store.log.commitlog import CommitLog

log = logging.getLogger(__name__)

_READS_BETWEEN: Final = 4
"""Chunks of the log searched for records that are missing between two files."""
_RECORDS_AT_ONCE: Final = 250


class IndexCheck:
    """Compares the index's files with the log.

    Args:
        disk: holds the files.
        log_: the log after its recovery.
        layout: the layout of every file.
        hashes: hashes the records' keys.
    """

    def __init__(
        self,
        disk: Disk,
        log_: CommitLog,
        layout: IndexLayout,
        hashes: KeyHashes,
    ) -> None:
        self._disk = disk
        self._log = log_
        self._layout = layout
        self._hashes = hashes

    def verified_files(
        self, names: list[str], *, durable_to_ms: int | None, complete_to: int | None
    ) -> list[IndexFile]:
        """Return the files of `names` up to the first one that fails; see `KeyIndex.open`.

        Raises:
            OSError: a file cannot be read. EIO is not raised: it counts as damage of that file.
        """
        files: list[IndexFile] = []
        for name in names:
            try:
                header = self._header(name)
                self._check(name, header, files, durable_to_ms, complete_to)
            except CorruptRecordError as error:
                if not self._is_empty(name):
                    log.warning("index.rebuilt_from file=%s reason=%s", name, error.reason)
                break
            files.append(IndexFile(self._disk, name, self._layout, header))
        return files

    def _header(self, name: str) -> IndexHeader:
        try:
            return read_header(self._disk, name, self._layout)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise CorruptRecordError(name, 0, f"the header cannot be read: {error}") from error

    def _is_empty(self, name: str) -> bool:
        try:
            return is_empty(self._disk, name)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False

    def _check(
        self,
        name: str,
        header: IndexHeader,
        files: list[IndexFile],
        durable_to_ms: int | None,
        complete_to: int | None,
    ) -> None:
        """Raise `CorruptRecordError` if the file contradicts the log or the files before it."""
        if durable_to_ms is not None and header.end_at_ms > durable_to_ms:
            raise CorruptRecordError(name, 8, "Java was killed before the file was durable")
        if header.end_offset >= self._log.written_position:
            raise CorruptRecordError(name, 24, "the log ends before the file's last record")
        if complete_to is not None and header.end_offset >= complete_to:
            raise CorruptRecordError(name, 24, "records before the file's last may be missing")
        if files and header.begin_offset < files[-1].header.end_offset:
            raise CorruptRecordError(name, 16, "the file begins before the previous file ends")
        if not self._is_gapless(header, files[-1].header if files else None):
            raise CorruptRecordError(name, 16, "records before the file's first are in no file")
        is_kept = header.end_offset >= self._log.min_position
        if is_kept and record_time(self._log, header.end_offset) != header.end_at_ms:
            raise CorruptRecordError(name, 24, "the file's last record is not in the log")

    def _is_gapless(self, header: IndexHeader, before: IndexHeader | None) -> bool:
        """Tell whether no record with a key lies between a file and the previous one."""
        end_offset = -1 if before is None else before.end_offset
        if end_offset < self._log.min_position and before is not None:
            return True  # records in between may have expired
        cursor = LogCursor(self._log, max(end_offset, self._log.min_position))
        until = self._log.written_position
        for _ in range(_READS_BETWEEN):
            if cursor.position >= header.begin_offset:
                return True
            cursor.read(until, may_block=True)
            for record in cursor.next_records(until, _RECORDS_AT_ONCE):
                if record.start >= header.begin_offset:
                    return True
                if record.start > end_offset and self._hashes.of_record(record):
                    return False
        return True  # no key in so many bytes: a missing file would have held one


def count_last(files: list[IndexFile]) -> int:
    """Return how many entries at the end of the files belong to the last record."""
    end_offset = files[-1].header.end_offset
    found = 0
    for file in reversed(files):
        for number in range(file.header.count - 1, 0, -1):
            if file.entry(number).physical_offset != end_offset:
                return found
            found += 1
    return found
