"""Compiler of property expressions (SQL92).

A message matches if its expression is true. It does not match if the expression is false, unknown
(None) or has no result. An expression has no result if a property that must be a number is not one,
unless AND or OR had already been decided by an operand further left.

An expression is compiled once into functions that call each other. The kind of each operand is
determined at that time, so `a > 5` costs one lookup, one conversion and one comparison per message.

Source: ComparisonExpression.java, LogicExpression.java, UnaryExpression.java, SelectorParser.java
(PARSE_CACHE), apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from kourou.errors import FilterEvaluationError, FilterSyntaxError
from kourou.filter.java_numbers import (
    compare_doubles,
    compare_values,
    is_true_text,
    number_parser,
    parse_double,
    parse_int,
    parse_long,
)
from kourou.filter.parser import parse
from kourou.filter.tree import (
    And,
    Cast,
    Constant,
    Equal,
    In,
    Kind,
    Negate,
    Node,
    Not,
    Or,
    Ordered,
    Property,
    Search,
    Value,
    constant_number,
    kind_of,
)

CACHED_MAX: Final = 100
"""Compiled expressions that are cached, as in Java. A subscription keeps its own in addition."""
CACHED_LENGTH_MAX: Final = 4096
"""Longest such expression in characters. It takes up to 125 bytes per character when compiled."""
LONG_CACHED_MAX: Final = 4
"""Compiled expressions longer than `CACHED_LENGTH_MAX` that are cached."""

Properties: TypeAlias = Mapping[str, str]
Evaluator: TypeAlias = Callable[[Properties], Value]
Predicate: TypeAlias = Callable[[Properties], bool | None]


class SqlFilter:
    """A compiled expression.

    Attributes:
        expression: the source text.
        text: its tree as Java writes it.
        evaluate: returns True, False, or None for unknown; raises `FilterEvaluationError` if there
            is no result.
        ignored_at: index at which ignored text behind the expression begins; None if there is none.
    """

    __slots__ = ("evaluate", "expression", "ignored_at", "text")

    def __init__(self, expression: str) -> None:
        """Compile an expression.

        Raises:
            FilterSyntaxError: the text is not a valid expression.
        """
        tree, self.ignored_at = parse(expression)
        self.expression = expression
        self.text = str(tree)
        self.evaluate: Predicate = _compile_boolean(tree)

    def matches(self, properties: Properties) -> bool:
        """Return whether a message with these properties matches."""
        try:
            return self.evaluate(properties) is True
        except FilterEvaluationError:
            return False


def compile_sql(expression: str) -> SqlFilter:
    """Return the compiled expression; costs about 4 us per character if it is not cached.

    Raises:
        FilterSyntaxError: the text is not a valid expression.
    """
    if len(expression) > CACHED_LENGTH_MAX:
        return _compile_long(expression)
    return _compile(expression)


@lru_cache(CACHED_MAX)
def _compile(expression: str) -> SqlFilter:
    return SqlFilter(expression)


@lru_cache(LONG_CACHED_MAX)
def _compile_long(expression: str) -> SqlFilter:
    return SqlFilter(expression)


def check_sql(expression: str) -> SqlFilter:
    """Return the compiled expression; refuse text behind it, which brokers ignore.

    It is for expressions that a user enters. Existing expressions are compiled by `compile_sql`,
    which ignores such text as brokers do.

    Raises:
        FilterSyntaxError: the text is not a valid expression, or text follows it.
    """
    compiled = compile_sql(expression)
    if compiled.ignored_at is not None:
        raise FilterSyntaxError(
            f"RocketMQ ignores the text behind {compiled.text}: LIKE and arithmetic are not "
            "supported, NOT takes one operand",
            compiled.ignored_at,
        )
    return compiled


def _compile_boolean(node: Node) -> Predicate:
    """Compile a boolean node: return the function that evaluates it."""
    if isinstance(node, And | Or):
        return _compile_logic(
            tuple(map(_compile_boolean, node.operands)), is_or=isinstance(node, Or)
        )
    if isinstance(node, Not):
        return _compile_not(_compile_boolean(node.operand))
    if isinstance(node, Equal):
        return _compile_equal(node.left, node.right)
    if isinstance(node, Ordered):
        return _compile_ordered(_TESTS[node.sign], node.left, node.right)
    if isinstance(node, In):
        return _compile_in(node.operand.name, frozenset(node.texts), is_negated=node.is_negated)
    if isinstance(node, Search):
        return _compile_search(node)
    if isinstance(node, Cast):
        name = node.operand.name
        return lambda properties: None if properties.get(name) is None else False
    assert isinstance(node, Constant), node
    value = node.value
    assert value is None or isinstance(value, bool)
    return lambda _properties: value


def _compile_value(node: Node) -> Evaluator:
    """Compile a node of any kind: return the function that evaluates it."""
    if isinstance(node, Property):
        name = node.name
        return lambda properties: properties.get(name)
    if isinstance(node, Constant) or constant_number(node) is not None:
        constant = node.value if isinstance(node, Constant) else constant_number(node)
        return lambda _properties: constant
    if isinstance(node, Negate):
        evaluate = _compile_value(node.operand)

        def negated(properties: Properties) -> None:
            evaluate(properties)  # only for the error it may raise

        return negated
    return _compile_boolean(node)


def _compile_logic(operands: Sequence[Predicate], *, is_or: bool) -> Predicate:
    """Compile AND, or OR, of the operands; evaluation stops at the first that decides it."""

    def logic(properties: Properties) -> bool | None:
        result: bool | None = not is_or
        for operand in operands:
            value = operand(properties)
            if value is is_or:
                return value
            if value is None:
                result = None
        return result

    if len(operands) > _PAIR:
        return logic
    left, right = operands

    def pair(properties: Properties) -> bool | None:
        first = left(properties)
        if first is is_or:
            return first
        second = right(properties)
        return second if second is is_or or first is not None else None

    return pair


_PAIR: Final = 2


def _compile_not(operand: Predicate) -> Predicate:
    def negation(properties: Properties) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return negation


def _compile_in(name: str, texts: frozenset[str], *, is_negated: bool) -> Predicate:
    def is_in(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in texts) is not is_negated

    return is_in


def _compile_search(node: Search) -> Predicate:
    """Compile a search; it is false if the operand is not a text or the search text is empty."""
    search_text, test, is_negated = node.text, _SEARCHES[node.word], node.is_negated
    if not search_text:
        return lambda _properties: False
    evaluate = _compile_value(node.operand)

    def searched(properties: Properties) -> bool:
        text = evaluate(properties)
        return test(text, search_text) is not is_negated if isinstance(text, str) else False

    return searched


def _compile_equal(left: Node, right: Node) -> Predicate:
    """Compile an equality.

    Null equals null. Otherwise null on the left gives unknown, null on the right gives false.
    """
    if isinstance(left, Property):
        name, literal = left.name, constant_number(right)
        if literal is not None:
            return _compile_property_equal(name, literal, number_parser(kind_of(right)))
        if isinstance(right, Constant) and isinstance(right.value, str):
            return _compile_property_equal_text(name, right.value)
        if isinstance(right, Constant) and isinstance(right.value, bool):
            return _compile_property_equal(name, right.value, is_true_text)
    evaluate_left, evaluate_right = _compile_value(left), _compile_value(right)
    left_kind, right_kind = kind_of(left), kind_of(right)

    def equal(properties: Properties) -> bool | None:
        left_value, right_value = evaluate_left(properties), evaluate_right(properties)
        if left_value is None:
            return True if right_value is None else None
        if right_value is None:
            return False
        return compare_values(left_kind, left_value, right_kind, right_value) == 0

    return equal


def _compile_property_equal(
    name: str, literal: Value, parse_text: Callable[[str], Value]
) -> Predicate:
    def equal(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else parse_text(text) == literal

    return equal


def _compile_property_equal_text(name: str, literal: str) -> Predicate:
    def equal(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text == literal

    return equal


def _compile_ordered(test: Callable[[float, float], bool], left: Node, right: Node) -> Predicate:
    """Compile an order comparison of numbers; it is unknown if an operand is null."""
    literal = constant_number(right)
    if isinstance(left, Property) and literal is not None:
        kind = kind_of(right)
        if kind is Kind.DOUBLE:
            return _compile_double_order(test, left.name, literal)
        return _compile_integer_order(
            test, left.name, literal, parse_int if kind is Kind.INT else parse_long
        )
    evaluate_left, evaluate_right = _compile_value(left), _compile_value(right)
    left_kind, right_kind = kind_of(left), kind_of(right)

    def ordered(properties: Properties) -> bool | None:
        left_value = evaluate_left(properties)
        if left_value is None:
            return None
        right_value = evaluate_right(properties)
        if right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return test(compare_doubles(parse_double(left_value), parse_double(right_value)), 0)
        return test(compare_values(left_kind, left_value, right_kind, right_value), 0)

    return ordered


def _compile_integer_order(
    test: Callable[[float, float], bool],
    name: str,
    literal: float,
    parse_text: Callable[[str], int],
) -> Predicate:
    def ordered(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else test(parse_text(text), literal)

    return ordered


def _compile_double_order(
    test: Callable[[float, float], bool], name: str, literal: float
) -> Predicate:
    def ordered(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else test(compare_doubles(parse_double(text), literal), 0)

    return ordered


_TESTS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEARCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
