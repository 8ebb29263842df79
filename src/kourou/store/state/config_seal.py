"""The last member of each config file that Kourou saves: it shows damage, and which file is newer.

    {..., "kourouSeal":{"sequence":12,"crc32":"0a1b2c3d"}}

    sequence    counts the saves of this file; 1 for the first
    crc32       of all bytes before its own digits; what follows them is always the same

In a text whose last brace has a line of its own, so has the seal.

JSON alone does not show a flipped digit: an offset of 7 would be one of 5. Java ignores the member,
and leaves it out when it saves the file; then only `dataVersion` tells which of two is newer.
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
"""A seal has 65 at most: beyond, such a member is somebody else's."""

_DATA_VERSION: Final = re.compile(rb'"dataVersion"\s*:\s*(\{[^{}]*\})')


class ConfigText(NamedTuple):
    """A config file's contents as they were given to be saved, and the number of the save.

    Attributes:
        sequence: 0 for a file that has no seal: Java's, or an earlier Kourou's.
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
        ValueError: `data` does not end as an object does.
    """
    if not data.endswith(b"}"):
        raise ValueError("a config file is one JSON object")
    newline, tab = (b"\n", b"\t") if data.endswith(b"\n}") else (b"", b"")
    members = data[: -1 - len(newline)]
    comma = b"" if members.rstrip().endswith(b"{") else b","
    text = b'%b%b%b%b%b"sequence":%d,"crc32":"' % (members, comma, newline, tab, _BEGIN, sequence)
    return b'%b%08x"}%b}' % (text, zlib.crc32(text), newline)


def unseal(text: bytes) -> ConfigText:
    """Return what was sealed; the text itself if it has no seal.

    Raises:
        MalformedBodyError: the text is not what was sealed.
    """
    at = text.rfind(_BEGIN, max(0, len(text) - _BYTES_MAX))
    if at < 0:
        return ConfigText(text, 0)
    match = _END.fullmatch(text, at + len(_BEGIN))
    if match is None or int(match[2], 16) != zlib.crc32(memoryview(text)[: match.start(2)]):
        raise MalformedBodyError(
            "its checksum is wrong: it was damaged, or changed by hand (then remove its last "
            f"member, {KEY})"
        )
    members = text[:at].removesuffix(match[3] and b"\n\t").removesuffix(b",")
    return ConfigText(b"%b%b}" % (members, match[3]), int(match[1]))


def is_newer(one: ConfigText, other: ConfigText) -> bool:
    """Return whether `one` was surely saved after `other`.

    By the numbers of their saves; where Java saved one, by `dataVersion`: no part of it may be less
    than the other's, because a clock may be set and a counter may begin anew.
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
