"""Whether all members of a group subscribe to the same; pure, but that it logs what it finds.

A broker keeps one subscription a group and topic, the latest that came. Where members want
different things, each heartbeat replaces that of the others: pulls are refused for a while, or
messages are filtered out for those who want them, and whose queue they are in they are lost to the
group. Java's broker says nothing then.

Topics of retries do not count: members of different releases subscribe to different ones.
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
"""Members that are named for each thing that is wanted."""
TEXT_MAX: Final = 120
"""Characters of an expression that are told."""
_TOLD_MAX: Final = 100
"""Kinds that are remembered as told; more are told again."""

Kind = tuple[tuple[str, str, str], ...]
"""What a member wants: topic, type and text of each expression, sorted."""


class SubscriptionKinds:
    """What the members of one group want.

    Members are told apart by any key; those that want the same share one object.
    """

    def __init__(self) -> None:
        self._of: dict[object, tuple[str, Kind]] = {}  # client id and what it wants
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
        """Note what a member wants, and log it once if others want something else."""
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
        """Forget a member that left."""
        self._drop(member)
        self._look(group, None)

    def is_wanted(self, subscription: SubscriptionData) -> bool:
        """Return whether a member subscribes to the topic in just this way."""
        if is_retry_topic(subscription.topic):
            return True
        wanted = _wanted(subscription)
        return any(wanted in kind for kind in self._kinds)

    def differences(self) -> list[str]:
        """Return the topics of which members want different things, each with who wants what."""
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
    """Return what members want differently, a text a topic.

    Args:
        wanted: client ids and what each wants.
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
