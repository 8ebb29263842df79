"""SubscriptionData: a group's subscription to one topic.

Source: SubscriptionData.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SUB_ALL: Final = "*"
"""The expression that matches every message."""
TAG_EXPRESSION: Final = "TAG"
SQL92_EXPRESSION: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """A group's subscription to one topic.

    Attributes:
        sub_string: the expression as written by the user; `*` matches all messages.
        tags_set: the tags in the expression; empty for `*`.
        code_set: their hashes (`kourou.protocol.hashing.java_string_hash`).
        sub_version: creation time in epoch milliseconds; a newer version replaces an older one.
        expression_type: TAG or SQL92.
        class_filter_mode: set by old clients with a filter class; stored, without effect.
    """

    topic: str
    sub_string: str = SUB_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = TAG_EXPRESSION
    class_filter_mode: bool = False
