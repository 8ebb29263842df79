"""Subscriptions of gRPC filter expressions."""

from __future__ import annotations

from kourou.errors import CallRefusedError
from kourou.filter.tags import parse_tags
from kourou.model.subscription import SQL92_EXPRESSION, SUB_ALL, SubscriptionData
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code, FilterType


def subscription_of(
    topic: str, expression: v2.FilterExpression, version: int = 0
) -> SubscriptionData:
    """Return the subscription to a topic; SQL is not parsed: the broker refuses what is invalid.

    Raises:
        CallRefusedError: ILLEGAL_FILTER_EXPRESSION; the type is unknown.
        FilterSyntaxError: the tags do not parse.
    """
    if expression.type == FilterType.SQL:
        return SubscriptionData(
            topic, expression.expression, sub_version=version, expression_type=SQL92_EXPRESSION
        )
    if expression.type not in (FilterType.TAG, FilterType.FILTER_TYPE_UNSPECIFIED):
        raise CallRefusedError(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"filter type {expression.type} is unknown: use TAG or SQL",
        )
    return parse_tags(topic, expression.expression or SUB_ALL, version)
