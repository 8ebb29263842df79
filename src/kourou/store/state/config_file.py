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
not parse, or does not match its seal. A file that is older than its backup was put there by hand,
and the backup is used. The log says which file was used and why. If both are bad, the load raises:
only the operator may decide to start without their contents, such as offsets and deleted topics.

A seal is the last member of the file's object. It reveals damage, and orders a file and its backup
by age:

    {..., "kourouSeal":{"sequence":12,"crc32":"0a1b2c3d"}}

    sequence    number of this save of the file, from 1
    crc32       of all bytes before its own digits; the bytes after them are constant

If the object's closing brace is on its own line, the seal is too. JSON alone does not reveal a
flipped digit, for example an offset of 5 instead of 7. Java ignores the member and drops it when it
saves the file; then only `dataVersion` shows which file is newer.

Source: ConfigManager.persist and load, MixAll.string2File, apache/rocketmq 5.5.0. Unlike there, the
new contents are synced before the rename.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kourou.disk import Disk, replace
from kourou.errors import CorruptRecordError, MalformedBodyError

log = logging.getLogger(__name__)

BARE_KEYS_BYTES_MAX: Final = 1024**3
"""Limit that `fastjson.loads` accepts for a config file with bare keys: larger than for a peer's
bytes, since the file is trusted and no request is held up while it is parsed."""

_MISSING: Final = "is missing"
_REMEDY: Final = "restore it from a copy, or remove both to start without their contents"

_SEAL_KEY: Final = "kourouSeal"
_SEAL_BEGIN: Final = b'"kourouSeal":{'
_SEAL_END: Final = re.compile(rb'"sequence":([0-9]{1,18}),"crc32":"([0-9a-f]{8})"\}(\n?)\}')
_SEAL_BYTES_MAX: Final = 80
"""The end of the file that is searched for a seal, which has 65 bytes at most."""
_DATA_VERSION: Final = re.compile(rb'"dataVersion"\s*:\s*(\{[^{}]*\})')


class ConfigText(NamedTuple):
    """A config file's contents without the seal, and the number of the save.

    Attributes:
        sequence: 0 for a file without a seal, written by Java or an earlier Kourou.
    """

    data: bytes
    sequence: int


class _DataVersion(msgspec.Struct, rename="camel", frozen=True):
    state_version: int = 0
    counter: int = 0
    timestamp: int = 0


@dataclass(slots=True)
class _ConfigCopy:
    """One of the two files; if it is unusable, `text` is None and `problem` gives the reason."""

    name: str
    text: ConfigText | None
    problem: str = ""


def read_sealed(disk: Disk, name: str) -> bytes | None:
    """Return the contents of a file with a seal and no backup; None if there is no file.

    Raises:
        MalformedBodyError: it is damaged, or has no seal.
        OSError: it cannot be read.
    """
    if not disk.exists(name):
        return None
    text, sequence = unseal(disk.read(name, 0, disk.size(name)))
    if not sequence:
        raise MalformedBodyError("it has no checksum")
    return text


def replace_sealed(disk: Disk, name: str, data: bytes) -> None:
    """Replace a file by contents with a seal, durably and without a backup.

    Raises:
        OSError: the file has the old contents, or the new ones.
    """
    replace(disk, name, seal(data, 1), backup=None)


class ConfigFile:
    """A small file with one JSON object, read at start and replaced as a whole.

    Args:
        disk: holds the file.
        name: path of the file; the first save creates the directory.
        parse: verifies the contents; raises (any exception) if they are bad. Its result is unused.
        restores: whether a load that falls back to the backup also rewrites the file. Leave it off
            for read-only callers.

    Attributes:
        loaded_sequence: number of the save whose contents `load` returned; 0 if they have no seal,
            because another program wrote them.
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
        self.loaded_sequence = 0
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
        is_current = data is not None and found is first
        self.loaded_sequence = 0 if found.text is None else found.text.sequence
        self._saved = data if is_current and self.loaded_sequence else None
        self._keeps_backup = not is_current
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
        """Replace the contents, durably; unchanged contents are not written if they are sealed.

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


def seal(data: bytes, sequence: int) -> bytes:
    """Return the JSON object `data` with the seal as its last member.

    Raises:
        ValueError: `data` does not end like a JSON object.
    """
    if not data.endswith(b"}"):
        raise ValueError("a config file must be one JSON object, which ends in '}'")
    newline, tab = (b"\n", b"\t") if data.endswith(b"\n}") else (b"", b"")
    members = data[: -1 - len(newline)]
    comma = b"" if members.rstrip().endswith(b"{") else b","
    begin = b"%b%b%b%b" % (comma, newline, tab, _SEAL_BEGIN)
    text = b'%b%b"sequence":%d,"crc32":"' % (members, begin, sequence)
    return b'%b%08x"}%b}' % (text, zlib.crc32(text), newline)


def unseal(text: bytes) -> ConfigText:
    """Return the text without its seal; the text itself if it has none.

    Raises:
        MalformedBodyError: the seal is malformed or its checksum is wrong.
    """
    at = text.rfind(_SEAL_BEGIN, max(0, len(text) - _SEAL_BYTES_MAX))
    if at < 0:
        return ConfigText(text, 0)
    match = _SEAL_END.fullmatch(text, at + len(_SEAL_BEGIN))
    if match is None or int(match[2], 16) != zlib.crc32(memoryview(text)[: match.start(2)]):
        raise MalformedBodyError(
            "its checksum is wrong: the file was damaged, or edited by hand (then remove its last "
            f"member, {_SEAL_KEY})"
        )
    members = text[:at].removesuffix(match[3] and b"\n\t").removesuffix(b",")
    return ConfigText(b"%b%b}" % (members, match[3]), int(match[1]))


def is_newer(one: ConfigText, other: ConfigText) -> bool:
    """Return whether `one` was certainly saved after `other`.

    Compares the sequences of their seals; if one has no seal, their `dataVersion`: no part of it
    may be lower than the other's, because a clock may be set and a counter may restart.
    """
    if one.sequence and other.sequence:
        return one.sequence > other.sequence
    first, second = _data_version(one.data), _data_version(other.data)
    if first is None or second is None or first == second:
        return False
    return all(mine >= its for mine, its in zip(first, second, strict=True))


def _data_version(text: bytes) -> tuple[int, int, int] | None:
    """Return (state version, counter, time); None if the text has none."""
    match = _DATA_VERSION.search(text)
    if match is None:
        return None
    try:
        found = msgspec.json.decode(match[1], type=_DataVersion)
    except msgspec.DecodeError:
        return None
    return found.state_version, found.counter, found.timestamp
