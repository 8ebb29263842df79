"""Filters of pops: by tags, or by an SQL92 expression over properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial

from kourou.broker.pulling.consumer_filters import compile_expression
from kourou.broker.pulling.filtered_reads import ArrivalFilter
from kourou.broker.pulling.long_polling import ArrivedMessage
from kourou.broker.pulling.message_filters import MessageFilter, is_tag_expression
from kourou.filter.tags import matches_code, parse_tags
from kourou.model.subscription import TAG_EXPRESSION, SubscriptionData
from kourou.store.reading.get_plan import Accepts

_TAG_COST = 1
_PROPERTIES_SIZE_USUAL = 256
_CACHED_MAX = 256


@dataclass(frozen=True, slots=True)
class PopFilter:
    """A parsed filter; equal to another one with the same expression.

    Attributes:
        kind: TAG or SQL92.
        subscription: the tags; those of an SQL92 filter are empty.
        by_properties: None for a filter by tags.
    """

    kind: str
    expression: str
    subscription: SubscriptionData = field(compare=False)
    by_properties: MessageFilter | None = field(compare=False, default=None)

    @property
    def accepts(self) -> Accepts | None:
        """The condition on the tags codes of queue entries; None if there is none."""
        if self.by_properties is not None:
            return None
        return partial(matches_code, self.subscription)


def parse_filter(topic: str, kind: str | None, expression: str | None) -> PopFilter | None:
    """Return the filter of a request; None if it accepts all messages.

    Raises:
        FilterSyntaxError: the expression is invalid or of an unknown type.
    """
    if not expression:
        return None
    return _parse(topic, kind or TAG_EXPRESSION, expression)


@lru_cache(_CACHED_MAX)
def _parse(topic: str, kind: str, expression: str) -> PopFilter | None:
    if is_tag_expression(kind):
        subscription = parse_tags(topic, expression)
        return PopFilter(kind, expression, subscription) if subscription.code_set else None
    compiled = compile_expression(kind, expression)
    return PopFilter(
        kind,
        expression,
        SubscriptionData(topic, expression, expression_type=kind),
        MessageFilter(compiled),
    )


@dataclass(frozen=True, slots=True)
class ArrivalPopFilter:
    """A filter applied to a message that has just arrived; see `WakeFilter`."""

    pop_filter: PopFilter
    arrivals: ArrivalFilter = field(compare=False)

    @property
    def cost(self) -> int:
        by_properties = self.pop_filter.by_properties
        return _TAG_COST if by_properties is None else by_properties.cost(_PROPERTIES_SIZE_USUAL)

    def matches(self, message: ArrivedMessage) -> bool:
        """Return whether the message may match."""
        by_properties = self.pop_filter.by_properties
        if by_properties is None:
            return matches_code(self.pop_filter.subscription, message.tags_code)
        return self.arrivals.is_wanted(by_properties, message)
