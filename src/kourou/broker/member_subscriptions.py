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
_REPORTED_MAX: Final = 100
"""Most subscription sets remembered as reported. When the number is reached, all are forgotten and
are reported again with the next new set."""

SubscriptionSet = tuple[tuple[str, str, str], ...]
"""The subscriptions of a member: topic, type and text of each expression, sorted."""


class MemberSubscriptions:
    """The subscriptions of the members of one group.

    A member is identified by any hashable key. Members with equal subscriptions share one
    `SubscriptionSet`.
    """

    def __init__(self) -> None:
        # member -> client id and subscriptions
        self._by_member: dict[object, tuple[str, SubscriptionSet]] = {}
        self._sets: Counter[SubscriptionSet] = Counter()
        self._shared: dict[SubscriptionSet, SubscriptionSet] = {}
        self._reported: set[SubscriptionSet] = set()

    def update(
        self,
        group: str,
        member: object,
        client_id: str,
        subscriptions: Iterable[SubscriptionData],
    ) -> None:
        """Store the subscriptions of a member; log once if those of other members differ."""
        subscription_set = tuple(
            sorted(_expression_key(one) for one in subscriptions if not is_retry_topic(one.topic))
        )
        known = self._by_member.get(member)
        if known is not None and known[1] == subscription_set:
            return
        self._discard(member)
        subscription_set = self._shared.setdefault(subscription_set, subscription_set)
        self._by_member[member] = (client_id, subscription_set)
        self._sets[subscription_set] += 1
        self._report(group, subscription_set)

    def remove(self, group: str, member: object) -> None:
        """Remove a member that left."""
        self._discard(member)
        self._report(group, None)

    def contains(self, subscription: SubscriptionData) -> bool:
        """Return whether some member has exactly this subscription; true for retry topics."""
        if is_retry_topic(subscription.topic):
            return True
        key = _expression_key(subscription)
        return any(key in subscription_set for subscription_set in self._sets)

    @property
    def is_consistent(self) -> bool:
        """Whether all members have the same subscriptions."""
        return len(self._sets) <= 1

    def differences(self) -> list[str]:
        """Return a text for each topic whose subscriptions differ between members."""
        return differences(self._by_member.values()) if len(self._sets) > 1 else []

    def _discard(self, member: object) -> None:
        known = self._by_member.pop(member, None)
        if known is None:
            return
        subscription_set = known[1]
        self._sets[subscription_set] -= 1
        if not self._sets[subscription_set]:
            del self._sets[subscription_set], self._shared[subscription_set]

    def _report(self, group: str, new: SubscriptionSet | None) -> None:
        if len(self._sets) <= 1:
            if self._reported:
                log.info("subscription.consistent group=%s members=%d", group, len(self._by_member))
            self._reported.clear()
        elif new is not None and new not in self._reported:
            self._reported = set() if len(self._reported) >= _REPORTED_MAX else self._reported
            self._reported.update(self._sets)
            log.warning(
                "subscription.inconsistent group=%s members=%d differences=%s",
                group,
                len(self._by_member),
                "; ".join(self.differences()),
            )


def _expression_key(subscription: SubscriptionData) -> tuple[str, str, str]:
    return (
        subscription.topic,
        subscription.expression_type or "TAG",
        subscription.sub_string,
    )


def differences(members: Collection[tuple[str, SubscriptionSet]]) -> list[str]:
    """Return a text for each topic whose subscriptions differ, with the members of each variant.

    Args:
        members: pairs of client id and subscriptions.
    """
    topics = sorted({topic for _, subscription_set in members for topic, _, _ in subscription_set})
    texts = []
    for topic in topics:
        by_expression: dict[str, list[str]] = {}
        for client_id, subscription_set in members:
            by_expression.setdefault(_expression(subscription_set, topic), []).append(client_id)
        if len(by_expression) > 1:
            parts = [f"{text} {_names(ids)}" for text, ids in sorted(by_expression.items())]
            texts.append(f"{topic}: {', '.join(parts)}")
    return texts


def _expression(subscription_set: SubscriptionSet, topic: str) -> str:
    for name, expression_type, text in subscription_set:
        if name == topic:
            shown = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
            return f"{shown!r}" if expression_type == "TAG" else f"{expression_type} {shown!r}"
    return "not subscribed"


def _names(ids: Collection[str]) -> str:
    named = sorted(ids)[:CLIENTS_NAMED_MAX]
    more = f" and {len(ids) - len(named)} more" if len(ids) > len(named) else ""
    return f"by {' '.join(named)}{more}"
