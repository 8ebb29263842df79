"""The epochs of a replicated log in `epochFileCheckpoint`, Java's text file, with `.bak` beside it.

    <number of entries>
    <CRC-32 of the lines below, as a decimal number; 0: not checked>
    <epoch>-<start>
    ...

A save keeps the old contents as `.bak`, so that one of the two files is complete at any time.

Source: CheckpointFile.java, EpochFileCache.EpochEntrySerializer, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from kourou.disk import Disk, replace
from kourou.errors import CorruptRecordError, EpochError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.protocol.hashing import crc32
from kourou.store.paths import EPOCHS

log = logging.getLogger(__name__)

_BACKUP: Final = f"{EPOCHS}.bak"
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
_ENTRY: Final = re.compile(rb"([0-9]{1,10})-([0-9]{1,19})")
_UNCHECKED: Final = 0
_REMEDY: Final = "restore it from a copy, or empty the store to copy it from the master again"


def read_epochs(disk: Disk) -> EpochList:
    """Return the saved epochs, or those of the backup if only that is good; empty without files.

    Raises:
        CorruptRecordError: files exist, and none is good.
        OSError: a file cannot be read.
    """
    problems = []
    for name in (EPOCHS, _BACKUP):
        if not disk.exists(name):
            continue
        try:
            epochs = decode_epochs(disk.read(name, 0, disk.size(name)))
        except EpochError as error:
            problems.append((name, str(error)))
            continue
        if problems:
            log.warning("epochs.restored from=%s reason=%s", name, problems[0][1])
        return epochs
    if problems:
        name, reason = problems[0]
        raise CorruptRecordError(name, 0, f"{reason}; {_REMEDY}")
    return EpochList()


def save_epochs(disk: Disk, epochs: EpochList) -> None:
    """Replace the saved epochs, durably.

    Raises:
        OSError: the old contents are still in the file or in its backup.
    """
    replace(disk, EPOCHS, encode_epochs(epochs), backup=_BACKUP)


def replace_epochs(disk: Disk, epochs: EpochList) -> None:
    """Replace the saved epochs and their backup, durably.

    So a damaged file is never replaced by a list that lacks an epoch, or names one that was cut.

    Raises:
        OSError: each of the two files has the old or the new contents.
    """
    save_epochs(disk, epochs)
    save_epochs(disk, epochs)


def cut_epochs(disk: Disk, end: int) -> None:
    """Remove the epochs that begin at or beyond the end of a closed store's log, durably.

    Raises:
        CorruptRecordError: files exist, and none is good.
        OSError: a file cannot be read or written.
    """
    found = read_epochs(disk)
    epochs = found.cut(end)
    if len(epochs) < len(found):
        replace_epochs(disk, epochs)


def encode_epochs(epochs: EpochList) -> bytes:
    """Return the contents of the file."""
    lines = b"".join(b"%d-%d\n" % entry for entry in epochs)
    return b"%d\n%d\n" % (len(epochs), crc32(lines)) + lines


def decode_epochs(data: bytes) -> EpochList:
    """Return the epochs of a file.

    Raises:
        EpochError: the file is cut short, does not match its checksum, or has invalid entries.
    """
    count, crc, *lines = [line.removesuffix(b"\r") for line in data.split(b"\n")] + [b""] * 2
    if not _NUMBER.fullmatch(count) or not _NUMBER.fullmatch(crc):
        raise EpochError(f"the file of epochs begins with {data[:40]!r} instead of two numbers")
    entries = [_entry(line) for line in lines if line]
    if len(entries) != int(count):
        raise EpochError(f"the file of epochs has {len(entries)} entries instead of {int(count)}")
    text = b"".join(line + b"\n" for line in lines if line)
    if int(crc) not in (_UNCHECKED, crc32(text)):
        raise EpochError(f"the file of epochs has checksum {crc32(text)} instead of {int(crc)}")
    return EpochList(entries)


def _entry(line: bytes) -> EpochEntry:
    found = _ENTRY.fullmatch(line)
    if found is None:
        raise EpochError(f"the file of epochs has the line {line[:40]!r} instead of epoch-start")
    return EpochEntry(int(found[1]), int(found[2]))
