"""Lexer of property expressions.

Java's parser reads one token ahead and ignores the text behind a complete expression. Tokens are
therefore read on demand: in `a = 1 garbage %`, the invalid `%` is never reached.

Source: SelectorParser.jj, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from kourou.errors import FilterSyntaxError


class TokenKind(Enum):
    """Kind of a token; the value is its description in error messages."""

    END = "the end"
    NAME = "a name"
    STRING = "a string"
    INTEGER = "an integer"
    FLOAT = "a number"
    WORD = "a word"
    SIGN = "a sign"


class Token(NamedTuple):
    """One token.

    Attributes:
        text: as written; a word in capitals; a string without quotes and with `''` unescaped.
        position: index of its first character.
    """

    kind: TokenKind
    text: str
    position: int


WORDS: Final = frozenset(
    {
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)
"""Reserved words, which cannot be property names; upper or lower case does not matter."""

_SKIPPED: Final = re.compile(
    r"""(?:[ \t\n\r\f]
    | --[^\n\r]*(?:\r\n|\n|\r)          # a comment, which must end with a line break
    | /\*(?:[^*]|\*(?!/))*\*/
    )+""",
    re.VERBOSE,
)
_TOKEN: Final = re.compile(
    r"""(?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    | (?P<INTEGER>0|[1-9][0-9]*[lL]?)
    | (?P<STRING>'(?:''|[^'])*')
    | (?P<NAME>[a-zA-Z_$][a-zA-Z0-9_$]*)
    | (?P<SIGN><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE,
)
_REMEDIES: Final = {
    "!": "write <> for unequal, and NOT for not",
    '"': "put strings in single quotes",
    "&": "write AND",
    "|": "write OR",
    "*": "arithmetic is not supported",
    "/": "arithmetic is not supported, and a comment must end with */",
    "%": "arithmetic is not supported",
    "'": "end the string with a single quote; write a quote inside it twice",
}


class Lexer:
    """Reads the tokens of one text, with a lookahead of one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next: Token | None = None

    def peek(self) -> Token:
        """Return the next token without consuming it.

        Raises:
            FilterSyntaxError: no token begins at the current position.
        """
        if self._next is None:
            self._next = self._read()
        return self._next

    def consume(self) -> Token:
        """Consume and return the next token.

        Raises:
            FilterSyntaxError: no token begins at the current position.
        """
        token = self.peek()
        self._next = None
        return token

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self._text, self._at)
        begin = skipped.end() if skipped is not None else self._at
        if begin == len(self._text):
            return Token(TokenKind.END, "", begin)
        found = _TOKEN.match(self._text, begin)
        if found is None:
            sign = self._text[begin]
            remedy = _REMEDIES.get(sign, "names consist of ASCII letters, digits, _ and $")
            raise FilterSyntaxError(f"unexpected {sign!r}: {remedy}", begin)
        self._at = found.end()
        kind, text = TokenKind[found.lastgroup or ""], found.group()
        if kind is TokenKind.NAME and text.upper() in WORDS:
            return Token(TokenKind.WORD, text.upper(), begin)
        if kind is TokenKind.STRING:
            text = text[1:-1].replace("''", "'")
        return Token(kind, text, begin)
