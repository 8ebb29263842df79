"""Detection of members that pop the same topic for one group with different filters.

A pop moves the group's offset behind the messages that its filter excludes, and they are delivered
to no other member either: members with different filters lose each other's messages. Members that
send heartbeats are compared by these (`broker/member_subscriptions.py`); here, clients are compared
by what they pop. Logs its findings, and does no other I/O.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou.remoting.log_rate import LogRate
from kourou.remoting.network import Address, format_address

log = logging.getLogger(__name__)

KEEP_MS: Final = 120_000
"""How long after its last pop a filter counts as in use; polls are held for less."""
KEYS_MAX: Final = 20_000
"""Limit on pairs of topic and group; further ones are not compared."""
EXPRESSIONS_MAX: Final = 8
"""Limit on the filters of a pair; further ones are not reported."""
TEXT_MAX: Final = 120
"""Limit on the characters of an expression in a report."""

_ALL: Final = "*"
_TAG: Final = "TAG"


class Use(NamedTuple):
    """Last pop with a filter: by which client, and when in epoch ms."""

    client: Address
    at_ms: int


@dataclass(slots=True)
class _Filters:
    uses: dict[str, Use] = field(default_factory=dict)
    reported: frozenset[str] = frozenset()


class PoppedFilters:
    """The filters with which clients popped lately, by group and topic."""

    def __init__(self, is_named: Callable[[str], bool] = lambda _group: False) -> None:
        """Start empty; groups for which `is_named` is true are not logged a second time."""
        self._is_named = is_named
        self._groups: dict[str, dict[str, _Filters]] = defaultdict(dict)
        self._count = 0
        self._reports = LogRate()

    def note(self, topic: str, group: str, kind: str | None, text: str | None, use: Use) -> None:
        """Note a pop with a filter, of which type and text are given; log new differences once."""
        topics = self._groups[group]
        filters = topics.get(topic)
        if filters is None:
            if self._count >= KEYS_MAX:
                self._drop_unused(use.at_ms)
            if self._count >= KEYS_MAX:
                return
            filters = self._groups[group][topic] = _Filters()
            self._count += 1
        name = _ALL if not text else text if kind in (None, "", _TAG) else f"{kind} {text}"
        is_new = name not in filters.uses
        if not is_new or len(filters.uses) < EXPRESSIONS_MAX:
            filters.uses[name] = use
        if is_new and len(filters.uses) > 1:
            self._compare(topic, group, filters, name, use)

    def differences(self, group: str, now_ms: int) -> dict[str, str]:
        """Return topic -> text, for each topic that is popped with different filters."""
        found = {}
        for topic, filters in sorted(self._groups.get(group, {}).items()):
            uses = _recent(filters, now_ms)
            if len(uses) > 1:
                parts = [f"{_shown(name)} by {format_address(uses[name].client)}" for name in uses]
                found[topic] = f"{topic}: {', '.join(sorted(parts))}"
        return found

    def groups(self, now_ms: int) -> list[str]:
        """Return the groups with differences, sorted."""
        return sorted(
            group
            for group, topics in self._groups.items()
            if any(len(_recent(filters, now_ms)) > 1 for filters in topics.values())
        )

    def remove_topic(self, topic: str) -> None:
        """Remove a deleted topic."""
        for group in list(self._groups):
            self._remove(group, topic)

    def remove_group(self, group: str) -> None:
        """Remove a deleted group."""
        self._count -= len(self._groups.pop(group, {}))

    def _compare(self, topic: str, group: str, filters: _Filters, name: str, use: Use) -> None:
        # A client that comes back with another filter has replaced its own.
        filters.uses = {
            other: one
            for other, one in _recent(filters, use.at_ms).items()
            if other == name or one.client != use.client
        }
        if len(filters.uses) < 2:
            filters.reported = frozenset()
        elif not filters.reported.issuperset(filters.uses):
            filters.reported = frozenset(filters.uses)
            if self._is_named(group):
                return
            suppressed = self._reports.take(use.at_ms / 1000)
            if suppressed is not None:
                log.warning(
                    "pop.filters_differ group=%s differences=%s suppressed=%d effect=%s",
                    group,
                    self.differences(group, use.at_ms)[topic],
                    suppressed,
                    "each loses the messages that only another one's filter accepts",
                )

    def _drop_unused(self, now_ms: int) -> None:
        for group, topics in list(self._groups.items()):
            for topic, filters in list(topics.items()):
                if not _recent(filters, now_ms):
                    self._remove(group, topic)

    def _remove(self, group: str, topic: str) -> None:
        topics = self._groups.get(group, {})
        if topics.pop(topic, None) is not None:
            self._count -= 1
        if not topics:
            self._groups.pop(group, None)


def _recent(filters: _Filters, now_ms: int) -> dict[str, Use]:
    return {name: use for name, use in filters.uses.items() if abs(now_ms - use.at_ms) <= KEEP_MS}


def _shown(name: str) -> str:
    return repr(name if len(name) <= TEXT_MAX else f"{name[:TEXT_MAX]}...")
