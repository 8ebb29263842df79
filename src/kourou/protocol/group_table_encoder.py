"""JSON text of the group table, joined from cached texts of its groups: see `encoded_members`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kourou.model.group import SubscriptionGroup
from kourou.protocol.bodies_groups import (
    SubscriptionGroupTable,
    encode_subscription_group_table,
    subscription_group_to_json,
)
from kourou.protocol.bodies_topics import DataVersion
from kourou.protocol.encoded_members import EncodedMembers

_GROUPS: Final = "subscriptionGroupTable"

Forbidden = Mapping[str, Mapping[str, int]]
"""See `SubscriptionGroupTable`."""


class GroupTableEncoder:
    """Builds the same bytes as `encode_subscription_group_table`, for the file and responses."""

    def __init__(self) -> None:
        self._members = EncodedMembers()

    def put(self, group: SubscriptionGroup) -> None:
        """Add or replace a group."""
        self._members.put(group.group_name, subscription_group_to_json(group))

    def remove(self, name: str) -> None:
        """Remove a group; an unknown name is ignored."""
        self._members.remove(name)

    def encode(self, version: DataVersion, forbidden: Forbidden) -> bytes:
        """Return the text of the file."""
        empty_table = SubscriptionGroupTable({}, version, forbidden)
        return self._members.pretty(
            encode_subscription_group_table(empty_table, pretty=True), _GROUPS
        )

    def encode_body(
        self, version: DataVersion, forbidden: Forbidden, names: Iterable[str] | None = None
    ) -> bytes:
        """Return the response body with all groups, or with those in `names`."""
        empty_table = SubscriptionGroupTable({}, version, forbidden)
        return self._members.compact(encode_subscription_group_table(empty_table), _GROUPS, names)
