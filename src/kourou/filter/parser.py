"""Parser of property expressions.

    or          and (OR and)*
    and         equality (AND equality)*
    equality    comparison (= comparison | <> comparison | IS [NOT] NULL)*
    comparison  operand (< <= > >= operand | [NOT] BETWEEN operand AND operand
                         | [NOT] IN (texts) | [NOT] CONTAINS, STARTSWITH, ENDSWITH text)*
    operand     (+ | - | NOT)* (literal | name | ( or ))

The text behind a complete expression is not parsed, as in Java: `b LIKE 'x'` means `b`.

Source: SelectorParser.jj, ComparisonExpression.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from kourou.errors import FilterEvaluationError, FilterSyntaxError
from kourou.filter.java_numbers import INT_MAX, LONG_MAX, compare_values
from kourou.filter.lexer import Lexer, Token, TokenKind
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
    is_boolean,
)

LENGTH_MAX: Final = 8 * 1024
"""Longest expression in characters. A broker compiles it in one step, 4 us per character, and keeps
it as long as a group subscribes with it."""
DEPTH_MAX: Final = 64
"""Deepest nesting of operators and parentheses. A chain of ANDs or of ORs counts as one level."""

_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
_SEARCHES: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_DIGITS_MAX: Final = 19
_CONSTANTS: Final = {
    "TRUE": Constant(Kind.BOOLEAN, True),
    "FALSE": Constant(Kind.BOOLEAN, False),
    "NULL": Constant(Kind.NULL, None),
}


class ParsedExpression(NamedTuple):
    """A parsed expression.

    Attributes:
        ignored_at: index at which ignored text behind the expression begins; None if there is none.
    """

    tree: Node
    ignored_at: int | None


def parse(text: str) -> ParsedExpression:
    """Return the tree of an expression.

    Raises:
        FilterSyntaxError: the text is not valid in RocketMQ, or exceeds `LENGTH_MAX` or
            `DEPTH_MAX`.
    """
    if len(text) > LENGTH_MAX:
        raise FilterSyntaxError(
            f"the expression has {len(text)} characters, at most {LENGTH_MAX} are allowed: divide "
            "it among several groups",
            LENGTH_MAX,
        )
    parser = _Parser(text)
    tree = parser.expression()
    next_token = parser.lexer.peek()
    return ParsedExpression(tree, None if next_token.kind is TokenKind.END else next_token.position)


class _Parser:
    """Recursive-descent parser of one text."""

    def __init__(self, text: str) -> None:
        self.lexer = Lexer(text)
        self._open_parentheses = 0
        self._depths: dict[int, int] = {}  # depth by id of node; 1 for a node that is not in here

    def expression(self) -> Node:
        begin = self.lexer.peek().position
        return self._boolean(self._or(), begin)

    def _or(self) -> Node:
        return self._chain("OR")

    def _and(self) -> Node:
        return self._chain("AND")

    def _chain(self, word: str) -> Node:
        """Parse operands joined by AND, or by OR, into one node, so that a chain is not deep."""
        parse_operand = self._and if word == "OR" else self._equality
        begin = self.lexer.peek().position
        first = parse_operand()
        if not self._at_word(word):
            return first
        operands = [self._boolean(first, begin)]
        while self._at_word(word):
            self.lexer.consume()
            begin = self.lexer.peek().position
            operands.append(self._boolean(parse_operand(), begin))
        node = Or(tuple(operands)) if word == "OR" else And(tuple(operands))
        return self._check_depth(node, begin, *operands)

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            token = self.lexer.peek()
            if token.kind is TokenKind.SIGN and token.text in ("=", "<>"):
                self.lexer.consume()
                left = self._equal(left, self._comparison(), token.position)
                if token.text == "<>":
                    left = self._check_depth(Not(left), token.position, left)
            elif token == (TokenKind.WORD, "IS", token.position):
                self.lexer.consume()
                is_negated = self._accept_word("NOT")
                self._expect("NULL")
                left = self._check_depth(Equal(left, _CONSTANTS["NULL"]), token.position, left)
                if is_negated:
                    left = self._check_depth(Not(left), token.position, left)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._operand()
        while True:
            token = self.lexer.peek()
            if token.kind is TokenKind.SIGN and token.text in _ORDERS:
                self.lexer.consume()
                left = self._ordered(token.text, left, self._operand(), token.position)
                continue
            if token.kind is not TokenKind.WORD:
                return left
            is_negated = self._accept_word("NOT")
            word = self.lexer.peek()
            if word.kind is TokenKind.WORD and word.text in _SEARCHES:
                self.lexer.consume()
                text = self._string()
                node: Node = Search(word.text, left, text, is_negated)
                left = self._check_depth(node, word.position, left)
            elif word == (TokenKind.WORD, "BETWEEN", word.position):
                left = self._between(left, is_negated=is_negated)
            elif word == (TokenKind.WORD, "IN", word.position):
                left = self._in(left, is_negated=is_negated)
            elif is_negated:
                raise _unexpected(word, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _operand(self) -> Node:
        signs: list[Token] = []
        while (token := self.lexer.peek()).text in ("+", "-", "NOT") and token.kind in _PREFIXES:
            signs.append(self.lexer.consume())
        begin = self.lexer.peek().position
        node = self._primary()
        for sign in reversed(signs):
            if sign.text == "-":
                node = self._check_depth(Negate(node), sign.position, node)
            elif sign.text == "NOT":
                node = self._boolean(node, begin)
                node = self._check_depth(Not(node), sign.position, node)
        return node

    def _primary(self) -> Node:
        token = self.lexer.consume()
        if token.kind is TokenKind.NAME:
            return Property(token.text)
        if token.kind is TokenKind.STRING:
            return Constant(Kind.STRING, token.text)
        if token.kind is TokenKind.INTEGER:
            return _integer(token)
        if token.kind is TokenKind.FLOAT:
            return _float(token)
        if token.kind is TokenKind.WORD and token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        if token != (TokenKind.SIGN, "(", token.position):
            raise _unexpected(token, "a property, a number, a string, TRUE, FALSE, NULL or (")
        self._open_parentheses += 1
        if self._open_parentheses > DEPTH_MAX:
            raise _too_deep(token.position)
        node = self._or()
        self._expect(")")
        self._open_parentheses -= 1
        return node

    def _equal(self, left: Node, right: Node, position: int) -> Node:
        for node in (left, right):
            if isinstance(node, Constant) and node.value is None:
                raise FilterSyntaxError("NULL cannot be compared: write IS NULL", position)
        if (
            isinstance(left, Constant)
            and isinstance(right, Constant)
            and left.kind is Kind.BOOLEAN
            and right.kind is not Kind.BOOLEAN
        ):
            raise FilterSyntaxError(f"{left} cannot be compared with {right}", position)
        return self._check_depth(Equal(left, right), position, left, right)

    def _ordered(self, sign: str, left: Node, right: Node, position: int) -> Node:
        for node in (left, right):
            is_text = isinstance(node, Constant) and node.kind is Kind.STRING
            if is_text or is_boolean(node):
                raise FilterSyntaxError(
                    f"{node} cannot be compared with {sign}: only numbers and properties can",
                    position,
                )
        return self._check_depth(Ordered(sign, left, right), position, left, right)

    def _between(self, left: Node, *, is_negated: bool) -> Node:
        position = self.lexer.consume().position
        low = self._operand()
        self._expect("AND")
        high = self._operand()
        _check_between(low, high, position)
        signs = ("<", ">") if is_negated else (">=", "<=")
        parts = (
            self._ordered(signs[0], left, low, position),
            self._ordered(signs[1], left, high, position),
        )
        return self._check_depth(Or(parts) if is_negated else And(parts), position, *parts)

    def _in(self, left: Node, *, is_negated: bool) -> Node:
        position = self.lexer.consume().position
        self._expect("(")
        texts = [self._string()]
        while self.lexer.peek().text == "," and self.lexer.peek().kind is TokenKind.SIGN:
            self.lexer.consume()
            texts.append(self._string())
        self._expect(")")
        if not isinstance(left, Property):
            raise FilterSyntaxError(f"expected a property before IN, found {left}", position)
        return In(left, tuple(texts), is_negated)

    def _string(self) -> str:
        token = self.lexer.consume()
        if token.kind is not TokenKind.STRING:
            raise _unexpected(token, "a string in single quotes")
        return token.text

    def _boolean(self, node: Node, begin: int) -> Node:
        """Return the node as a boolean operand: a property becomes a `Cast`."""
        if isinstance(node, Property):
            return Cast(node)
        if not is_boolean(node):
            raise FilterSyntaxError(f"{node} is neither true nor false", begin)
        return node

    def _at_word(self, word: str) -> bool:
        token = self.lexer.peek()
        return token.kind is TokenKind.WORD and token.text == word

    def _accept_word(self, word: str) -> bool:
        if not self._at_word(word):
            return False
        self.lexer.consume()
        return True

    def _expect(self, text: str) -> None:
        token = self.lexer.consume()
        if token.text != text or token.kind not in (TokenKind.WORD, TokenKind.SIGN):
            raise _unexpected(token, text)

    def _check_depth(self, node: Node, position: int, *parts: Node) -> Node:
        """Return the node after checking its depth: compilation and evaluation are recursive."""
        depth = 1 + max(self._depths.get(id(part), 1) for part in parts)
        if depth > DEPTH_MAX:
            raise _too_deep(position)
        self._depths[id(node)] = depth
        return node


_PREFIXES: Final = (TokenKind.SIGN, TokenKind.WORD)


def _integer(token: Token) -> Constant:
    digits = token.text.rstrip("lL")
    if len(digits) > _DIGITS_MAX or int(digits) > LONG_MAX:
        raise FilterSyntaxError(f"{_shorten(digits)} is above {LONG_MAX}", token.position)
    value = int(digits)
    return Constant(Kind.INT if value <= INT_MAX else Kind.LONG, value)


def _float(token: Token) -> Constant:
    value = float(token.text)
    if math.isinf(value):
        raise FilterSyntaxError(f"{_shorten(token.text)} does not fit 64 bits", token.position)
    if value == 0:
        # A bug in Java: it treats the smallest positive double as the lowest one.
        reason = f"RocketMQ does not accept {_shorten(token.text)}: write the integer 0"
        raise FilterSyntaxError(reason, token.position)
    return Constant(Kind.DOUBLE, value)


def _check_between(low: Node, high: Node, position: int) -> None:
    """Refuse two constants that form an empty range."""
    if not isinstance(low, Constant) or not isinstance(high, Constant):
        return
    if low.value is None or high.value is None:
        raise FilterSyntaxError("NULL cannot be a limit of BETWEEN", position)
    try:
        order = compare_values(high.kind, high.value, low.kind, low.value)
    except FilterEvaluationError as error:
        raise FilterSyntaxError(str(error), position) from error
    if order < 0:
        raise FilterSyntaxError(
            f"the range {low} to {high} is empty: write the smaller limit first", position
        )


def _unexpected(token: Token, wanted: str) -> FilterSyntaxError:
    actual = _shorten(token.text) if token.text else token.kind.value
    return FilterSyntaxError(f"expected {wanted}, found {actual}", token.position)


def _too_deep(position: int) -> FilterSyntaxError:
    return FilterSyntaxError(
        f"more than {DEPTH_MAX} operators or parentheses are nested: reduce the nesting",
        position,
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _SHORTENED_CHARS_MAX else text[:_SHORTENED_CHARS_MAX] + "..."


_SHORTENED_CHARS_MAX: Final = 64
