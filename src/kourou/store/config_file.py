"""One file of the store's `config/` directory, with the backup that RocketMQ keeps beside it.

A save keeps the old contents as `<name>.bak`, and leaves no moment at which neither is whole.

Source: ConfigManager.persist and load, MixAll.string2File, apache/rocketmq 5.5.0. Unlike there, the
new contents are synced before they take the name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kourou.disk import Disk, replace
from kourou.errors import CorruptRecordError

log = logging.getLogger(__name__)

BARE_KEYS_BYTES_MAX: Final = 1024**3
"""What `fastjson.loads` may read of a config file that has bare keys: no peer sent it, and nobody
waits beside whoever reads it."""

_REMEDY: Final = "restore it from a copy, or remove both to begin without what they say"


class ConfigFile:
    """A small file that is read at start and replaced as a whole.

    Args:
        disk: where it is.
        name: its name; the directory is made when the file is first saved.
        parse: called with the contents to tell whether they are whole; it raises ValueError or a
            KourouError if they are not, and what it returns is not used.
    """

    def __init__(
        self, disk: Disk, name: str, parse: Callable[[bytes], object] = lambda _: None
    ) -> None:
        self.name = name
        self._disk = disk
        self._parse = parse
        self._backup = f"{name}.bak"
        self._saved: bytes | None = None

    def load(self) -> bytes | None:
        """Return the contents, or the backup's if they are missing, empty or do not parse.

        Returns:
            None if there is neither: the store is new.

        Raises:
            CorruptRecordError: neither parses. Both files are left as they are.
        """
        first = self._read(self.name)
        if first is not None and self._error_in(first) is None:
            self._saved = first
            return first
        second = self._read(self._backup)
        if second is None:
            if first is None:
                return None
            reason = f"{self._error_in(first)}, and no backup; {_REMEDY}"
            raise CorruptRecordError(self.name, 0, reason)
        error = self._error_in(second)
        if error is not None:
            reason = f"{error}, and {self.name} is missing or no better; {_REMEDY}"
            raise CorruptRecordError(self._backup, 0, reason)
        log.warning("config_file.restored name=%s from=%s", self.name, self._backup)
        return second

    def save(self, data: bytes) -> None:
        """Replace the contents; when this returns they are on the disk. Same contents cost nothing.

        Raises:
            OSError: the old contents are still there, in the file or in its backup.
        """
        if data == self._saved:
            return
        directory = self.name.rpartition("/")[0]
        if not self._disk.exists(directory):
            self._disk.make_directory(directory)
            self._disk.sync_directory(directory.rpartition("/")[0])
        has_whole_file = self._saved is not None or self._is_whole()
        replace(self._disk, self.name, data, backup=self._backup if has_whole_file else None)
        self._saved = data

    def _is_whole(self) -> bool:
        """Tell whether the file may become the backup: a bad one must not replace a good one."""
        data = self._read(self.name)
        return data is not None and self._error_in(data) is None

    def _read(self, name: str) -> bytes | None:
        """Return the file's contents; an empty one, as a crash may leave it, counts as missing."""
        try:
            return self._disk.read(name, 0, self._disk.size(name)) or None
        except FileNotFoundError:
            return None

    def _error_in(self, data: bytes) -> Exception | None:
        try:
            self._parse(data)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises on bad bytes
            return error
        return None
