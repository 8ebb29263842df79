"""One file of the store's `config/` directory, with the backup that RocketMQ keeps beside it.

A save keeps the old contents as `<name>.bak`, and leaves no moment at which neither is whole:

    a crash after                    leaves `<name>`, `.bak`       the next load takes
    the new contents are in `.tmp`   the old, the one before       the old
    `<name>` became `.bak`           nothing, the old              the old, and says so
    `.tmp` became `<name>`           the new, the old              the new
    the first save, no `.bak` yet    the new, nothing              the new; then it is copied

A load takes the last good one of the two. A file is bad if it is cut, empty, does not parse, or is
not what was sealed (`config_seal`); and one that is older than its backup has been put in its
place. Which one was taken, and why, is logged. If both are bad the load is refused: to begin
without what they say is for the operator to choose, offsets and deleted topics included.

Source: ConfigManager.persist and load, MixAll.string2File, apache/rocketmq 5.5.0. Unlike there, the
new contents are synced before they take the name.
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
"""What `fastjson.loads` may read of a config file that has bare keys: no peer sent it, and nobody
waits beside whoever reads it."""

_MISSING: Final = "is missing"
_REMEDY: Final = "restore it from a copy, or remove both to begin without what they say"


@dataclass(slots=True)
class _Found:
    """One of the two files; `text` is None, and `problem` says why, if it cannot be used."""

    name: str
    text: ConfigText | None
    problem: str = ""


class ConfigFile:
    """A small file, one JSON object, that is read at start and replaced as a whole.

    Args:
        disk: where it is.
        name: its name; the directory is made when the file is first saved.
        parse: called with the contents to tell whether they are whole; it raises ValueError or a
            KourouError if they are not, and what it returns is not used.
        restores: whether a load that takes the backup also puts it in the file's place, so that the
            next need not; not for those who only look.
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
        self._keeps_backup = False  # the file is bad or older, and must not replace the backup

    def load(self) -> bytes | None:
        """Return the contents as they were saved, or the backup's if those are the last good ones.

        Returns:
            None if there is neither file: the store is new.

        Raises:
            CorruptRecordError: there are files, and none is good. They are left as they are.
        """
        self._is_loaded = True
        first, second = self._find(self.name), self._find(self._backup)
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
        except OSError as error:  # it was read, and that is what counts
            log.warning("config_file.not_rewritten name=%s error=%s", self.name, error)

    def save(self, data: bytes) -> None:
        """Replace the contents; when this returns they are on the disk. Same contents cost nothing.

        Raises:
            OSError: the old contents are still there, in the file or in its backup.
            ValueError: `data` is not a JSON object.
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
        # A save that fails at its very end may be on the disk: the next one has another number.
        self._sequence += 1
        text = seal(data, self._sequence)
        backup = None if self._keeps_backup else self._backup
        replace(self._disk, self.name, text, backup=backup)
        self._saved, self._keeps_backup = data, False
        if not self._disk.exists(self._backup):
            replace(self._disk, self._backup, text, backup=None)

    def _find(self, name: str) -> _Found:
        """Read one of the files, and compare it with its seal."""
        try:
            text = self._disk.read(name, 0, self._disk.size(name))
        except FileNotFoundError:
            return _Found(name, None, _MISSING)
        if not text:
            return _Found(name, None, "is empty")
        try:
            return _Found(name, unseal(text))
        except MalformedBodyError as error:
            return _Found(name, None, f"is bad: {error}")

    def _contents(self, found: _Found) -> bytes | None:
        """Return what the file says; None if it does not parse or was bad before."""
        if found.text is None:
            return None
        try:
            self._parse(found.text.data)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises on bad bytes
            found.text, found.problem = None, f"is bad: {error}"
            return None
        return found.text.data

    def _refuse_bad(self, first: _Found, second: _Found) -> None:
        """Raise, unless both files are missing."""
        bad, other = (first, second) if second.problem == _MISSING else (second, first)
        if bad.problem != _MISSING:
            is_alone = bad is first and other.problem == _MISSING
            rest = f"no backup {other.name}" if is_alone else f"{other.name} {other.problem}"
            reason = f"{bad.problem}, and {rest}; {_REMEDY}"
            raise CorruptRecordError(bad.name, 0, reason)
