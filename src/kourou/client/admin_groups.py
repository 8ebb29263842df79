"""AdminClient: consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kourou.client import calls_admin_groups
from kourou.client.admin_calls import AdminCalls, Server, ask_all
from kourou.errors import GroupNotFoundError, RemoteSystemError
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.topic import check_group
from kourou.protocol.bodies import ConsumeOffset
from kourou.protocol.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Who consumes as a group, and how far it is.

    Attributes:
        group: its name.
        members: client ids of its live members, sorted.
        offsets: where it stands in each queue that it committed or subscribed.
        consume_tps: messages a second, as brokers count them.
    """

    group: str
    members: tuple[str, ...] = ()
    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def lag(self) -> int:
        """Messages stored and not committed, over all queues."""
        return sum(
            max(0, offset.broker_offset - offset.consumer_offset)
            for offset in self.offsets.values()
        )


class GroupAdmin(AdminCalls):
    """Creates, deletes and describes consumer groups."""

    async def group_list(self) -> list[SubscriptionGroup]:
        """Return the consumer groups of all brokers, sorted by name; of several, any one's view."""
        tables = await ask_all(await self._masters(), calls_admin_groups.group_table)
        groups = {name: found for part in tables.values() for name, found in part.groups.items()}
        return [groups[name] for name in sorted(groups)]

    async def describe_group(self, group: str) -> GroupDescription:
        """Return who consumes as a group, and how far it is.

        Raises:
            InvalidGroupError: the name is not valid.
            GroupNotFoundError: no broker knows the group.
        """
        check_group(group)
        masters = await self._masters()
        tables = await ask_all(masters, calls_admin_groups.group_table)
        knowing = {name: masters[name] for name, part in tables.items() if group in part.groups}
        if not knowing:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows the group {group}"
            )
        stats = await ask_all(
            knowing, lambda server: calls_admin_groups.consume_stats(server, group)
        )
        members = await ask_all(knowing, lambda server: _members(server, group))
        offsets = {queue: found for part in stats.values() for queue, found in part.offsets.items()}
        return GroupDescription(
            group,
            tuple(sorted({member for ids in members.values() for member in ids})),
            dict(sorted(offsets.items())),
            sum(part.consume_tps for part in stats.values()),
        )

    async def create_group(self, group: SubscriptionGroup) -> None:
        """Create a consumer group on all brokers, or change it.

        Raises:
            InvalidGroupError: the name is not valid.
        """
        check_group(group.group_name)
        for server in (await self._masters()).values():
            await calls_admin_groups.create_group(server, group)

    async def delete_group(self, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a consumer group on all brokers.

        Args:
            group: its name.
            clean_offsets: forget its committed offsets too, which cannot be undone.

        Raises:
            InvalidGroupError: the name is not valid.
        """
        check_group(group)
        for server in (await self._masters()).values():
            await calls_admin_groups.delete_group(server, group, clean_offsets=clean_offsets)


async def _members(server: Server, group: str) -> list[str]:
    try:
        return await calls_admin_groups.consumer_ids(server, group)
    except RemoteSystemError:
        return []  # how brokers say that nobody is there
