"""Tag expressions: `TagA || TagB`, or `*` for all messages.

The broker filters by the tag hash in the consume queue, so a tag whose hash equals that of a
subscribed one also passes. The consumer then compares the tags themselves.

Source: FilterAPI.buildSubscriptionData, ExpressionMessageFilter.isMatchedByConsumeQueue,
PullAPIWrapper.processPullResult.
"""

from __future__ import annotations

from typing import Final

from kourou.errors import FilterSyntaxError
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.protocol.hashing import java_string_hash

EXPRESSION_LENGTH_MAX: Final = 64 * 1024
"""Longest expression in characters; a broker keeps the expression as long as a group uses it."""

_OR = "||"


def parse_tags(topic: str, expression: str | None, sub_version: int = 0) -> SubscriptionData:
    """Return the subscription of an expression; None, an empty one and `*` select all messages.

    Blanks around a tag are removed and empty parts dropped, so a blank expression selects all
    messages too.

    Raises:
        FilterSyntaxError: the expression consists of separators only, or is too long.
    """
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, sub_version=sub_version)
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise FilterSyntaxError(
            f"the expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} are "
            "allowed: divide the tags among several groups"
        )
    parts = expression.split(_OR)
    if not any(parts):
        raise FilterSyntaxError(f"no tag in {expression!r}")
    tags = frozenset(filter(None, map(str.strip, parts)))
    return SubscriptionData(
        topic, expression, tags, frozenset(map(java_string_hash, tags)), sub_version
    )


def matches_code(subscription: SubscriptionData, tags_code: int) -> bool:
    """Return whether a message with this tag hash may match; used by the broker."""
    return not subscription.code_set or tags_code in subscription.code_set


def matches_tag(subscription: SubscriptionData, tag: str | None) -> bool:
    """Return whether a message with this tag matches; used by the consumer."""
    return not subscription.tags_set or tag in subscription.tags_set
