"""Parser for `broker.conf`, a Java properties file.

Request bodies in the same format are parsed by `kourou.protocol.properties_text`, which works on
bytes and raises protocol errors. The errors of this module name the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kourou.errors import ConfigError

_BLANKS: Final = " \t\f"
_PROPERTY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str, source: str) -> dict[str, str]:
    r"""Return key -> value of a Java properties text; of a duplicate key, the last value.

    Trailing blanks of a value are removed. Java keeps them, and then fails to parse such a number.

    Raises:
        ConfigError: a `\u` is not followed by four hexadecimal digits.

    Source: java.util.Properties.load.
    """
    pairs = {}
    for line in _logical_lines(text):
        match = _PROPERTY.fullmatch(line)
        assert match is not None, "the pattern takes any text"
        key, value = (_unescape(part, source) for part in match.groups())
        pairs[key] = value.rstrip(_BLANKS)
    return pairs


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the logical lines: without comments, continuation lines joined."""
    line = ""
    continues = False
    for natural in re.split(r"\r\n|\n|\r", text):
        piece = natural.lstrip(_BLANKS)
        if not continues and piece.startswith(("#", "!")):
            continue
        backslashes = len(piece) - len(piece.rstrip("\\"))
        continues = backslashes % 2 == 1
        line += piece[:-1] if continues else piece
        if line and not continues:
            yield line
            line = ""
    if line:
        yield line


def _unescape(text: str, source: str) -> str:
    """Return a key or value with its backslash escapes resolved."""

    def resolve(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped == "u":
            raise ConfigError(f"{source}: \\u in {text!r} lacks its four hexadecimal digits")
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(resolve, text)
