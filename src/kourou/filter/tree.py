"""The tree of a property expression: what was written, before it is compiled.

Every operator but a sign before a number gives true, false or unknown, and a property is a text or
missing: so what an operand can be is known from the tree.

`str()` of a node is what Java's node says of itself.

Source: package org.apache.rocketmq.filter.expression, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import TypeAlias


class Kind(Enum):
    """What an operand is when it is not null, in Java's classes."""

    STRING = "String"
    BOOLEAN = "Boolean"
    INT = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    NULL = "null"


NUMBERS = frozenset({Kind.INT, Kind.LONG, Kind.DOUBLE})

Value: TypeAlias = str | bool | int | float | None


@dataclass(frozen=True, slots=True)
class Constant:
    """What was written as it is."""

    kind: Kind
    value: Value

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        if isinstance(self.value, bool):
            return str(self.value).upper()
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message's property."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Negate:
    """The number with the other sign; null of what is no number, and so of every property."""

    operand: Node

    def __str__(self) -> str:
        return f"(- {self.operand})"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where true or false is asked for: null when missing, else false."""

    operand: Property

    def __str__(self) -> str:
        return str(self.operand)


@dataclass(frozen=True, slots=True)
class Not:
    """True of false, and false of true."""

    operand: Node

    def __str__(self) -> str:
        return f"(NOT {self.operand})"


@dataclass(frozen=True, slots=True)
class And:
    """True where all are, false where one is."""

    operands: Sequence[Node]

    def __str__(self) -> str:
        return _nested("&&", self.operands)


@dataclass(frozen=True, slots=True)
class Or:
    """False where all are, true where one is."""

    operands: Sequence[Node]

    def __str__(self) -> str:
        return _nested("||", self.operands)


@dataclass(frozen=True, slots=True)
class Equal:
    """Whether two operands are the same, one changed to the other's kind."""

    left: Node
    right: Node

    def __str__(self) -> str:
        return f"({self.left} == {self.right})"


@dataclass(frozen=True, slots=True)
class Ordered:
    """How two numbers compare.

    Attributes:
        sign: `<`, `<=`, `>` or `>=`.
    """

    sign: str
    left: Node
    right: Node

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True, slots=True)
class In:
    """Whether a property is one of some texts."""

    operand: Property
    texts: Sequence[str]
    is_negated: bool

    def __str__(self) -> str:
        word = "NOT IN" if self.is_negated else "IN"
        return f"{self.operand} {word} ( {', '.join(self.texts)} )"


@dataclass(frozen=True, slots=True)
class Search:
    """Whether a text holds another.

    Attributes:
        word: CONTAINS, STARTSWITH or ENDSWITH.
    """

    word: str
    operand: Node
    text: str
    is_negated: bool

    def __str__(self) -> str:
        return f"({'NOT ' if self.is_negated else ''}{self.word} {self.operand})"


Node: TypeAlias = (
    Constant | Property | Negate | Cast | Not | And | Or | Equal | Ordered | In | Search
)

BOOLEANS = (Cast, Not, And, Or, Equal, Ordered, In, Search)
"""Nodes that are true, false or null; constants may be so too."""


def is_boolean(node: Node) -> bool:
    """Return whether the node is an expression of Java's that may stand alone."""
    if isinstance(node, Constant):
        return node.kind in (Kind.BOOLEAN, Kind.NULL)
    return isinstance(node, BOOLEANS)


def kind_of(node: Node) -> Kind:
    """Return what the node gives when that is not null; NULL for what is always null."""
    if isinstance(node, Constant):
        return node.kind
    if isinstance(node, Property):
        return Kind.STRING
    if isinstance(node, Negate):
        kind = kind_of(node.operand)
        return kind if kind in NUMBERS else Kind.NULL
    return Kind.BOOLEAN


def number(node: Node) -> int | float | None:
    """Return the number that a node always is, None of others."""
    sign = 1
    while isinstance(node, Negate):
        node, sign = node.operand, -sign
    if not isinstance(node, Constant) or node.kind not in NUMBERS:
        return None
    assert isinstance(node.value, int | float)
    return node.value if sign == 1 else -node.value


def _nested(sign: str, operands: Sequence[Node]) -> str:
    """Return operands as Java nests them: two and two, from the left."""
    return reduce(lambda left, right: f"({left} {sign} {right})", map(str, operands))
