"""Seal of a config file: a last member that reveals damage and orders a file and its backup by age.

    {..., "kourouSeal":{"sequence":12,"crc32":"0a1b2c3d"}}

    sequence    number of this save of the file, from 1
    crc32       of all bytes before its own digits; the bytes after them are constant

If the object's closing brace is on its own line, the seal is too.

JSON alone does not reveal a flipped digit, for example an offset of 5 instead of 7. Java ignores
the member and drops it when it saves the file; then only `dataVersion` shows which file is newer.
"""

from __future__ import annotations

import re
import zlib
from typing import Final, NamedTuple

import msgspec

from kourou.errors import MalformedBodyError

KEY: Final = "kourouSeal"

_BEGIN: Final = b'"kourouSeal":{'
_END: Final = re.compile(rb'"sequence":([0-9]{1,18}),"crc32":"([0-9a-f]{8})"\}(\n?)\}')
_BYTES_MAX: Final = 80
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
    text = b'%b%b%b%b%b"sequence":%d,"crc32":"' % (members, comma, newline, tab, _BEGIN, sequence)
    return b'%b%08x"}%b}' % (text, zlib.crc32(text), newline)


def unseal(text: bytes) -> ConfigText:
    """Return the text without its seal; the text itself if it has none.

    Raises:
        MalformedBodyError: the seal is malformed or its checksum is wrong.
    """
    at = text.rfind(_BEGIN, max(0, len(text) - _BYTES_MAX))
    if at < 0:
        return ConfigText(text, 0)
    match = _END.fullmatch(text, at + len(_BEGIN))
    if match is None or int(match[2], 16) != zlib.crc32(memoryview(text)[: match.start(2)]):
        raise MalformedBodyError(
            "its checksum is wrong: the file was damaged, or edited by hand (then remove its last "
            f"member, {KEY})"
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
