"""A file of the store's `config/` directory, with RocketMQ's backup file beside it.

A save keeps the old contents as `<name>.bak`. One of the two files is complete at any time:

    crash after                      `<name>`, `.bak`              the next load returns
    writing the new contents to      old, the one before           the old contents
        `.tmp`
    renaming `<name>` to `.bak`      absent, old                   the old contents, with a warning
    renaming `.tmp` to `<name>`      new, old                      the new contents
    the first save, before `.bak`    new, absent                   the new contents; a later save
        is written                                                 writes `.bak`

A load returns the newest good contents of the two. A file is bad if it is empty, truncated, does
not parse, or does not match its seal (`config_seal`). A file that is older than its backup was put
there by hand, and the backup is used. The log says which file was used and why. If both are bad,
the load raises: only the operator may decide to start without their contents, such as offsets and
deleted topics.

Source: ConfigManager.persist and load, MixAll.string2File, apache/rocketmq 5.5.0. Unlike there, the
new contents are synced before the rename.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kourou.disk import Disk, replace
from kourou.errors import CorruptRecordError, MalformedBodyError
from kourou.store.state.config_seal import ConfigText, is_newer, seal, unseal

log = logging.getLogger(__name__)

BARE_KEYS_BYTES_MAX: Final = 1024**3
"""Limit that `fastjson.loads` accepts for a config file with bare keys: larger than for a peer's
bytes, since the file is trusted and no request is held up while it is parsed."""

_MISSING: Final = "is missing"
_REMEDY: Final = "restore it from a copy, or remove both to start without their contents"


@dataclass(slots=True)
class _ConfigCopy:
    """One of the two files; if it is unusable, `text` is None and `problem` gives the reason."""

    name: str
    text: ConfigText | None
    problem: str = ""


class ConfigFile:
    """A small file with one JSON object, read at start and replaced as a whole.

    Args:
        disk: holds the file.
        name: path of the file; the first save creates the directory.
        parse: verifies the contents; raises (any exception) if they are bad. Its result is unused.
        restores: whether a load that falls back to the backup also rewrites the file. Leave it off
            for read-only callers.
    """

    def __init__(
        self,
        disk: Disk,
        name: str,
        parse: Callable[[bytes], object] = lambda _: None,
        *,
        restores: bool = False,
    ) -> None:
        self.name = name
        self._restores = restores
        self._disk = disk
        self._parse = parse
        self._backup = f"{name}.bak"
        self._saved: bytes | None = None
        self._sequence = 0
        self._is_loaded = False
        self._keeps_backup = False  # the file is bad or older: it must not replace the backup

    def load(self) -> bytes | None:
        """Return the saved contents, or the backup's if these are the newest good ones.

        Returns:
            None if neither file exists.

        Raises:
            CorruptRecordError: files exist and none is good. They are left unchanged.
        """
        self._is_loaded = True
        first, second = self._read_copy(self.name), self._read_copy(self._backup)
        texts = [found.text for found in (first, second) if found.text is not None]
        self._sequence = max((text.sequence for text in texts), default=0)
        is_older = len(texts) == 2 and is_newer(texts[1], texts[0])
        data = None
        for found in (second, first) if is_older else (first, second):
            data = self._contents(found)
            if data is not None:
                break
        self._saved = data if data is not None and found is first else None
        self._keeps_backup = self._saved is None
        if data is None:
            self._refuse_bad(first, second)
        elif found is second:
            reason = f"{self.name} is older" if is_older else f"{self.name} {first.problem}"
            log.warning(
                "config_file.restored name=%s from=%s reason=%s",
                self.name, self._backup, reason,
            )  # fmt: skip
            if self._restores:
                self._restore(data)
        return data

    def _restore(self, data: bytes) -> None:
        try:
            self.save(data)
        except OSError as error:  # the load itself succeeded
            log.warning("config_file.not_rewritten name=%s error=%s", self.name, error)

    def save(self, data: bytes) -> None:
        """Replace the contents, durably; unchanged contents are not written.

        Raises:
            OSError: the old contents are still in the file or in its backup.
            ValueError: `data` does not end like a JSON object.
        """
        if data == self._saved:
            return
        if not self._is_loaded:
            with suppress(CorruptRecordError):
                self.load()
        directory = self.name.rpartition("/")[0]
        if not self._disk.exists(directory):
            self._disk.make_directory(directory)
            self._disk.sync_directory(directory.rpartition("/")[0])
        # A save that fails at its very end may be on disk: the next one needs another number.
        self._sequence += 1
        text = seal(data, self._sequence)
        backup = None if self._keeps_backup else self._backup
        replace(self._disk, self.name, text, backup=backup)
        self._saved, self._keeps_backup = data, False
        if not self._disk.exists(self._backup):
            replace(self._disk, self._backup, text, backup=None)

    def _read_copy(self, name: str) -> _ConfigCopy:
        """Read one of the files and verify its seal."""
        try:
            text = self._disk.read(name, 0, self._disk.size(name))
        except FileNotFoundError:
            return _ConfigCopy(name, None, _MISSING)
        if not text:
            return _ConfigCopy(name, None, "is empty")
        try:
            return _ConfigCopy(name, unseal(text))
        except MalformedBodyError as error:
            return _ConfigCopy(name, None, f"is bad: {error}")

    def _contents(self, found: _ConfigCopy) -> bytes | None:
        """Return the file's contents; None if they are bad or do not parse."""
        if found.text is None:
            return None
        try:
            self._parse(found.text.data)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises on bad bytes
            found.text, found.problem = None, f"is bad: {error}"
            return None
        return found.text.data

    def _refuse_bad(self, first: _ConfigCopy, second: _ConfigCopy) -> None:
        """Raise, unless both files are missing."""
        bad, other = (first, second) if second.problem == _MISSING else (second, first)
        if bad.problem != _MISSING:
            is_alone = bad is first and other.problem == _MISSING
            rest = f"no backup {other.name}" if is_alone else f"{other.name} {other.problem}"
            reason = f"{bad.problem}, and {rest}; {_REMEDY}"
            raise CorruptRecordError(bad.name, 0, reason)
