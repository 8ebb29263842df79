"""Tokens of a property expression, one at a time.

Java's parser looks one token ahead and no further, and never at what follows a complete
expression. Hence tokens are made when they are asked for: `a = 1 garbage %` has none that is wrong.

Source: SelectorParser.jj, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from kourou.errors import FilterSyntaxError


class TokenKind(Enum):
    """What a token is; words and signs are kinds of their own, by their text in capitals."""

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
        text: as written; of words in capitals; of a string what it means, without quotes.
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
"""Words that are no names, in any case."""

_SKIPPED: Final = re.compile(
    r"""(?:[ \t\n\r\f]
    | --[^\n\r]*(?:\r\n|\n|\r)          # a comment to the end of the line, which must be there
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
    '"': "strings stand in single quotes",
    "&": "write AND",
    "|": "write OR",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic, and a comment ends in */",
    "%": "there is no arithmetic",
    "'": "a string ends in a single quote; one within it is written twice",
}


class Lexer:
    """The tokens of one text, of which the next can be looked at."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next: Token | None = None

    def peek(self) -> Token:
        """Return the next token without taking it.

        Raises:
            FilterSyntaxError: there is none at that place.
        """
        if self._next is None:
            self._next = self._read()
        return self._next

    def take(self) -> Token:
        """Return the next token, and go on behind it.

        Raises:
            FilterSyntaxError: there is none at that place.
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
            remedy = _REMEDIES.get(sign, "names are of ASCII letters, digits, _ and $")
            raise FilterSyntaxError(f"nothing begins with {sign!r}: {remedy}", begin)
        self._at = found.end()
        kind, text = TokenKind[found.lastgroup or ""], found.group()
        if kind is TokenKind.NAME and text.upper() in WORDS:
            return Token(TokenKind.WORD, text.upper(), begin)
        if kind is TokenKind.STRING:
            text = text[1:-1].replace("''", "'")
        return Token(kind, text, begin)
