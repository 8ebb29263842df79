"""SubscriptionData: what a group wants of one topic.

Source: SubscriptionData.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SUB_ALL: Final = "*"
"""The expression that takes every message."""
TAG_EXPRESSION: Final = "TAG"
SQL92_EXPRESSION: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """What a group wants of one topic.

    Attributes:
        sub_string: the expression as the user wrote it; `*` takes all.
        tags_set: the tags it names, none for `*`.
        code_set: their hashes (`kourou.protocol.hashing.java_string_hash`).
        sub_version: epoch milliseconds of its making; the newer one counts.
        expression_type: TAG or SQL92.
        class_filter_mode: a filter class of old clients; kept, without effect.
    """

    topic: str
    sub_string: str = SUB_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = TAG_EXPRESSION
    class_filter_mode: bool = False
