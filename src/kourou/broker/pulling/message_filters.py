"""Message filters by property expressions, which tags cannot express.

A filter is applied in two steps. First to the bit map in the queue entry's extension unit, if there
is one: a bit map without the filter's bits proves that the message does not match. Then to the
properties of the record.

Source: ExpressionMessageFilter.java, ExpressionForRetryMessageFilter.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kourou.filter.bloom import BloomFilter
from kourou.model.properties import RETRY_TOPIC
from kourou.model.subscription import TAG_EXPRESSION


def is_tag_expression(kind: str | None) -> bool:
    """Return whether an expression of this type is a tag expression, which is the default type."""
    return not kind or kind == TAG_EXPRESSION


def filters_off_remark(kind: str | None) -> str:
    """Return Java's remark for a pull that filters by properties while that is off."""
    return f"The broker does not support consumer to filter message by {kind}"


_COST_MIN: Final = 16
"""Fixed cost of evaluating a message, in eighths of a us."""


class CompiledExpression(Protocol):
    """A compiled expression; see `kourou.filter.sql92.SqlFilter`."""

    @property
    def expression(self) -> str: ...

    def matches(self, properties: Mapping[str, str]) -> bool: ...


class ExtensionUnit(Protocol):
    """A message's extension unit, as far as filters read it."""

    @property
    def store_at_ms(self) -> int: ...

    @property
    def bit_map(self) -> bytes: ...


class FilterBits(NamedTuple):
    """A filter's bits in bit maps; valid for messages stored after `born_at_ms`."""

    bloom: BloomFilter
    positions: Sequence[int]
    born_at_ms: int


class MessageFilter:
    """Message filter of one pull."""

    __slots__ = ("_bits", "_compiled", "_expression_for")

    def __init__(
        self,
        compiled: CompiledExpression | None,
        bits: FilterBits | None = None,
        expression_for: Callable[[str], CompiledExpression | None] | None = None,
    ) -> None:
        """Filter by `compiled`; None accepts all messages.

        Args:
            compiled: the expression.
            bits: the expression's bits in bit maps; None if it has none.
            expression_for: returns the group's expression for the topic that a message of its retry
                topic was first sent to; None for other topics, or if retries are not filtered.
        """
        self._compiled = compiled
        self._bits = bits
        self._expression_for = expression_for

    def may_match(self, unit: ExtensionUnit) -> bool:
        """Return False if the bit map proves that the message does not match."""
        bits = self._bits
        if bits is None or unit.store_at_ms <= bits.born_at_ms:
            return True
        return bits.bloom.contains(unit.bit_map, bits.positions)

    def cost(self, properties_size: int) -> int:
        """Return the estimated cost of `matches`, in eighths of a us.

        `properties_size`: bytes of the properties.
        """
        compiled = self._compiled
        return _COST_MIN + properties_size // 2 + (len(compiled.expression) if compiled else 0)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties passes the filter."""
        compiled = self._compiled
        if self._expression_for is not None:
            compiled = self._expression_for(properties.get(RETRY_TOPIC, ""))
        return compiled is None or compiled.matches(properties)
