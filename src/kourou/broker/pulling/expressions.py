"""Which messages a pull wants by the expression of its group: what tags cannot say.

It is asked twice. At the queue entry, by the bit map of its extension unit, if there is one: a bit
map without the filter's bits says that the message did not pass. Then at the record, by its
properties.

Source: ExpressionMessageFilter.java, ExpressionForRetryMessageFilter.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kourou.filter.bloom import BloomFilter
from kourou.model.properties import RETRY_TOPIC
from kourou.model.subscription import TAG_EXPRESSION


def is_tag_expression(kind: str | None) -> bool:
    """Return whether an expression of this type is a tag expression; no type means that too."""
    return not kind or kind == TAG_EXPRESSION


def not_served(kind: str | None) -> str:
    """Return what to tell a client that filters by properties, which is off; Java's words."""
    return f"The broker does not support consumer to filter message by {kind}"


_COST_MIN: Final = 16
"""What reading a message costs beside, in eighths of a us."""


class Compiled(Protocol):
    """A compiled expression, see `kourou.filter.sql92.SqlFilter`."""

    @property
    def expression(self) -> str: ...

    def matches(self, properties: Mapping[str, str]) -> bool: ...


class Unit(Protocol):
    """What an extension unit says of a message."""

    @property
    def store_at_ms(self) -> int: ...

    @property
    def bit_map(self) -> bytes: ...


class Bits(NamedTuple):
    """How bit maps tell of a filter: which bits it has, in those of messages stored since when."""

    bloom: BloomFilter
    positions: Sequence[int]
    born_at_ms: int


class MessageFilter:
    """The filter of one pull."""

    __slots__ = ("_bits", "_compiled", "_of_real_topic")

    def __init__(
        self,
        compiled: Compiled | None,
        bits: Bits | None = None,
        of_real_topic: Callable[[str], Compiled | None] | None = None,
    ) -> None:
        """Filter by `compiled`; None takes all.

        Args:
            compiled: the expression.
            bits: how bit maps tell of it; None where they do not.
            of_real_topic: gives the group's expression for the topic that a message of its retry
                topic was first sent to; None for other topics, and where retries are not filtered.
        """
        self._compiled = compiled
        self._bits = bits
        self._of_real_topic = of_real_topic

    def may_match(self, unit: Unit) -> bool:
        """Return False if the bit map says that the message did not pass."""
        bits = self._bits
        if bits is None or unit.store_at_ms <= bits.born_at_ms:
            return True
        return bits.bloom.has(unit.bit_map, bits.positions)

    def cost(self, properties_size: int) -> int:
        """Return about what `matches` costs for properties of so many bytes, in eighths of a us."""
        compiled = self._compiled
        return _COST_MIN + properties_size // 2 + (len(compiled.expression) if compiled else 0)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties is wanted."""
        compiled = self._compiled
        if self._of_real_topic is not None:
            compiled = self._of_real_topic(properties.get(RETRY_TOPIC, ""))
        return compiled is None or compiled.matches(properties)
