"""Syntax tree of a property expression.

The kind of every operand is known from the tree: a property is a text or missing, and every
operator except the sign of a number gives true, false or unknown.

`str()` of a node equals toString of Java's node.

Source: package org.apache.rocketmq.filter.expression, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import TypeAlias


class Kind(Enum):
    """Kind of an operand that is not null; the value is the name of Java's class."""

    STRING = "String"
    BOOLEAN = "Boolean"
    INT = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    NULL = "null"


NUMBER_KINDS = frozenset({Kind.INT, Kind.LONG, Kind.DOUBLE})

Value: TypeAlias = str | bool | int | float | None


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

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
    """The negated number; null if the operand is not a number, so always null for a property."""

    operand: Node

    def __str__(self) -> str:
        return f"(- {self.operand})"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property used as a boolean: null if it is missing, else false."""

    operand: Property

    def __str__(self) -> str:
        return str(self.operand)


@dataclass(frozen=True, slots=True)
class Not:
    """Logical negation; null of null."""

    operand: Node

    def __str__(self) -> str:
        return f"(NOT {self.operand})"


@dataclass(frozen=True, slots=True)
class And:
    """Logical conjunction: true if all operands are true, false if one is false, else null."""

    operands: Sequence[Node]

    def __str__(self) -> str:
        return _nest("&&", self.operands)


@dataclass(frozen=True, slots=True)
class Or:
    """Logical disjunction: true if one operand is true, false if all are false, else null."""

    operands: Sequence[Node]

    def __str__(self) -> str:
        return _nest("||", self.operands)


@dataclass(frozen=True, slots=True)
class Equal:
    """Equality of two operands, one of which is converted to the other's kind."""

    left: Node
    right: Node

    def __str__(self) -> str:
        return f"({self.left} == {self.right})"


@dataclass(frozen=True, slots=True)
class Ordered:
    """Order comparison of two numbers.

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
    """Test whether a property equals one of several texts."""

    operand: Property
    texts: Sequence[str]
    is_negated: bool

    def __str__(self) -> str:
        word = "NOT IN" if self.is_negated else "IN"
        return f"{self.operand} {word} ( {', '.join(self.texts)} )"


@dataclass(frozen=True, slots=True)
class Search:
    """Test whether a text contains, begins or ends with another.

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

BOOLEAN_NODES = (Cast, Not, And, Or, Equal, Ordered, In, Search)
"""Nodes whose value is true, false or null. Constants may have such a value too."""


def is_boolean(node: Node) -> bool:
    """Return whether Java accepts the node as a boolean expression."""
    if isinstance(node, Constant):
        return node.kind in (Kind.BOOLEAN, Kind.NULL)
    return isinstance(node, BOOLEAN_NODES)


def kind_of(node: Node) -> Kind:
    """Return the kind of the node's value; NULL if the value is always null."""
    if isinstance(node, Constant):
        return node.kind
    if isinstance(node, Property):
        return Kind.STRING
    if isinstance(node, Negate):
        kind = kind_of(node.operand)
        return kind if kind in NUMBER_KINDS else Kind.NULL
    return Kind.BOOLEAN


def constant_number(node: Node) -> int | float | None:
    """Return the number that a constant, possibly negated node stands for; None for other nodes."""
    sign = 1
    while isinstance(node, Negate):
        node, sign = node.operand, -sign
    if not isinstance(node, Constant) or node.kind not in NUMBER_KINDS:
        return None
    assert isinstance(node.value, int | float)
    return node.value if sign == 1 else -node.value


def _nest(sign: str, operands: Sequence[Node]) -> str:
    """Return the operands nested in pairs from the left, as Java does."""
    return reduce(lambda left, right: f"({left} {sign} {right})", map(str, operands))
