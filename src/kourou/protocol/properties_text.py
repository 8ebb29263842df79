"""Codec of `key=value` lines: the bodies of requests that read or change configuration.

Java parses the text like java.util.Properties: `#` and `!` begin a comment; the first `=`, `:` or
blank ends the key; a backslash at the end of a line continues the line, and any other backslash
escapes the next character: a tab, a line break, or a UTF-16 code unit as `u` and four digits. Java
itself writes no escapes. This encoder writes the escapes needed for decoding, and escapes all
non-ASCII characters, because Java reads the bytes as Latin-1.

Source: MixAll.properties2String, MixAll.string2Properties, java.util.Properties.load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kourou.errors import MalformedBodyError

_LINE: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
# A key before unescaping; an escape is two characters.
_KEY: Final = re.compile(r"[^\\=: \t\f]*(?:\\.[^\\=: \t\f]*)*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def encode_properties_text(properties: Mapping[str, str]) -> bytes:
    """Return the lines of the properties, sorted by key, each with a line break.

    Raises:
        ValueError: a key or value is not valid Unicode.
    """
    lines = (f"{_escape_key(key)}={_escape(properties[key])}\n" for key in sorted(properties))
    return "".join(lines).encode()


def decode_properties_text(text: bytes) -> dict[str, str]:
    """Return the properties of a text; of several lines with the same key the last one counts.

    Raises:
        MalformedBodyError: the text is not UTF-8, or an escaped `u` lacks its four digits.
    """
    try:
        lines = _LINE.split(text.decode())
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"not properties: {error}") from None
    properties: dict[str, str] = {}
    for line in _logical_lines(lines):
        key = _KEY.match(line)
        assert key is not None, "the pattern also matches the empty text"
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None, "the pattern also matches the empty text"
        properties[_unescape(key[0])] = _unescape(line[separator.end() :])
    return properties


def _logical_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines that are not blank or comments, joined with their continuations."""
    parts: list[str] = []
    for natural in lines:
        line = natural.lstrip(_BLANKS)
        if not parts and (not line or line[0] in "#!"):
            continue
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if is_continued else line)
        if not is_continued:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    unescaped = _ESCAPE.sub(_unescape_one, text)
    # Java's texts are UTF-16: a character beyond U+FFFF is written as two escapes.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape_one(match: re.Match[str]) -> str:
    digits, character = match[1], match[2]
    if digits is not None:
        return chr(int(digits, 16))
    if character == "u":
        raise MalformedBodyError("not properties: \\u without four hexadecimal digits")
    return _ESCAPED.get(character, character or "")


def _escape(value: str) -> str:
    escaped = "".join(map(_escape_one, value))
    # A leading blank would be read as part of the separator.
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _escape_key(key: str) -> str:
    return re.sub(r"([=: ])|^(?=[#!])", r"\\\1", "".join(map(_escape_one, key)))


def _escape_one(character: str) -> str:
    if character.isascii():
        return _ESCAPES.get(character, character)
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
