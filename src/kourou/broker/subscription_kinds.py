"""Detection of members of a group that have different subscriptions.

A broker holds one subscription per group and topic, the latest one. If members of a group have
different subscriptions, each heartbeat replaces that of the others. Then pulls are refused for a
while, or a member gets messages of its queues filtered by the subscription of another, and the
group misses the messages that are filtered out. Java's broker does not report this.

Retry topics are ignored: members of different releases subscribe to different ones. The module
logs its findings and does no other I/O.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from kourou.model.subscription import SubscriptionData
from kourou.model.topic import is_retry_topic

log = logging.getLogger(__name__)

CLIENTS_NAMED_MAX: Final = 3
"""Most members named in the report for each expression."""
TEXT_MAX: Final = 120
"""Most characters of an expression in the report."""
_TOLD_MAX: Final = 100
"""Most kinds remembered as reported. When the number is reached, all are forgotten, and are
reported again with the next new kind."""

Kind = tuple[tuple[str, str, str], ...]
"""The subscriptions of a member: topic, type and text of each expression, sorted."""


class SubscriptionKinds:
    """The subscriptions of the members of one group.

    A member is identified by any hashable key. Members with equal subscriptions share one `Kind`.
    """

    def __init__(self) -> None:
        self._of: dict[object, tuple[str, Kind]] = {}  # member -> client id, subscriptions
        self._kinds: Counter[Kind] = Counter()
        self._shared: dict[Kind, Kind] = {}
        self._told: set[Kind] = set()

    def note(
        self,
        group: str,
        member: object,
        client_id: str,
        subscriptions: Iterable[SubscriptionData],
    ) -> None:
        """Store the subscriptions of a member; log once if those of other members differ."""
        kind = tuple(sorted(_wanted(one) for one in subscriptions if not is_retry_topic(one.topic)))
        known = self._of.get(member)
        if known is not None and known[1] == kind:
            return
        self._drop(member)
        kind = self._shared.setdefault(kind, kind)
        self._of[member] = (client_id, kind)
        self._kinds[kind] += 1
        self._look(group, kind)

    def forget(self, group: str, member: object) -> None:
        """Remove a member that left."""
        self._drop(member)
        self._look(group, None)

    def is_wanted(self, subscription: SubscriptionData) -> bool:
        """Return whether some member has exactly this subscription; true for retry topics."""
        if is_retry_topic(subscription.topic):
            return True
        wanted = _wanted(subscription)
        return any(wanted in kind for kind in self._kinds)

    def differences(self) -> list[str]:
        """Return a text for each topic whose subscriptions differ between members."""
        return differences(self._of.values()) if len(self._kinds) > 1 else []

    def _drop(self, member: object) -> None:
        known = self._of.pop(member, None)
        if known is None:
            return
        kind = known[1]
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind], self._shared[kind]

    def _look(self, group: str, new: Kind | None) -> None:
        if len(self._kinds) <= 1:
            if self._told:
                log.info("subscription.consistent group=%s members=%d", group, len(self._of))
            self._told.clear()
        elif new is not None and new not in self._told:
            self._told = set() if len(self._told) >= _TOLD_MAX else self._told
            self._told.update(self._kinds)
            log.warning(
                "subscription.inconsistent group=%s members=%d differences=%s",
                group,
                len(self._of),
                "; ".join(self.differences()),
            )


def _wanted(subscription: SubscriptionData) -> tuple[str, str, str]:
    return (
        subscription.topic,
        subscription.expression_type or "TAG",
        subscription.sub_string,
    )


def differences(wanted: Collection[tuple[str, Kind]]) -> list[str]:
    """Return a text for each topic whose subscriptions differ, with the members of each variant.

    Args:
        wanted: pairs of client id and subscriptions.
    """
    topics = sorted({topic for _, kind in wanted for topic, _, _ in kind})
    texts = []
    for topic in topics:
        by_expression: dict[str, list[str]] = {}
        for client_id, kind in wanted:
            by_expression.setdefault(_expression(kind, topic), []).append(client_id)
        if len(by_expression) > 1:
            parts = [f"{text} {_names(ids)}" for text, ids in sorted(by_expression.items())]
            texts.append(f"{topic}: {', '.join(parts)}")
    return texts


def _expression(kind: Kind, topic: str) -> str:
    for name, kind_of, text in kind:
        if name == topic:
            shown = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
            return f"{shown!r}" if kind_of == "TAG" else f"{kind_of} {shown!r}"
    return "not subscribed"


def _names(ids: Collection[str]) -> str:
    named = sorted(ids)[:CLIENTS_NAMED_MAX]
    more = f" and {len(ids) - len(named)} more" if len(ids) > len(named) else ""
    return f"by {' '.join(named)}{more}"
