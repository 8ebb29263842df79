"""Tag expressions: `TagA || TagB`, or `*` for all.

The broker filters by the hash that the consume queue holds, so a message whose tag has the hash
of a wanted one passes it; the consumer compares the tags themselves.

Source: FilterAPI.buildSubscriptionData, ExpressionMessageFilter.isMatchedByConsumeQueue,
PullAPIWrapper.processPullResult.
"""

from __future__ import annotations

from typing import Final

from kourou.errors import FilterSyntaxError
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.protocol.hashing import java_string_hash

EXPRESSION_LENGTH_MAX: Final = 64 * 1024
"""Characters of an expression; a broker keeps it for as long as somebody subscribes by it."""

_OR = "||"


def parse_tags(topic: str, expression: str | None, sub_version: int = 0) -> SubscriptionData:
    """Return the subscription of an expression; None, an empty one and `*` take all messages.

    Blanks around a tag do not count, and empty parts are dropped, so that a blank expression
    takes all too.

    Raises:
        FilterSyntaxError: the expression has separators and nothing else, or is too long.
    """
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, sub_version=sub_version)
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise FilterSyntaxError(
            f"an expression of {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} are "
            "taken: split the group"
        )
    parts = expression.split(_OR)
    if not any(parts):
        raise FilterSyntaxError(f"no tag in {expression!r}")
    tags = frozenset(filter(None, map(str.strip, parts)))
    return SubscriptionData(
        topic, expression, tags, frozenset(map(java_string_hash, tags)), sub_version
    )


def matches_code(subscription: SubscriptionData, tags_code: int) -> bool:
    """Return whether a message with this hash may be wanted; the broker's question."""
    return not subscription.code_set or tags_code in subscription.code_set


def matches_tag(subscription: SubscriptionData, tag: str | None) -> bool:
    """Return whether a message with this tag is wanted; the consumer's question."""
    return not subscription.tags_set or tag in subscription.tags_set
