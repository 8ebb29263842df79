"""AdminClient: consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict, Unpack

from kourou.client.administration import calls_admin_clients, calls_admin_groups
from kourou.client.administration.admin_calls import AdminCalls, Server, ask_all
from kourou.errors import ConsumerNotOnlineError, GroupNotFoundError, RemoteSystemError
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.topic import check_group
from kourou.protocol.bodies import ConsumeOffset
from kourou.protocol.codes import ResponseCode

GROUPS_AT_A_TIME: Final = 16
"""Groups that brokers are asked about at once."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Who consumes as a group, and how far it is.

    Attributes:
        group: its name.
        members: client ids of its live members, sorted.
        offsets: where it stands in each queue that it committed or subscribed.
        consume_tps: messages a second, as brokers count them.
        differences: where members subscribe to different things, who to what, a text a topic: they
            lose messages then. Only `describe_group` asks for it, and only Kourou's brokers tell.
    """

    group: str
    members: tuple[str, ...] = ()
    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0
    differences: tuple[str, ...] = ()

    @property
    def lag(self) -> int:
        """Messages stored and not committed, over all queues."""
        return sum(
            max(0, offset.broker_offset - offset.consumer_offset)
            for offset in self.offsets.values()
        )


class GroupChanges(TypedDict, total=False):
    """What `update_group` can change; see `kourou.model.group.SubscriptionGroup`."""

    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    group_retry_policy: Mapping[str, object]
    broker_id: int
    which_broker_when_consume_slowly: int
    notify_consumer_ids_changed_enable: bool
    group_sys_flag: int
    consume_timeout_minute: int
    attributes: Mapping[str, str]


class GroupAdmin(AdminCalls):
    """Creates, deletes and describes consumer groups."""

    async def group_list(self) -> list[SubscriptionGroup]:
        """Return the consumer groups of all brokers, sorted by name; of several, any one's view."""
        tables = await ask_all(await self._masters(), calls_admin_groups.group_table)
        groups = {name: found for part in tables.values() for name, found in part.groups.items()}
        return [groups[name] for name in sorted(groups)]

    async def group_config(self, group: str) -> dict[str, SubscriptionGroup]:
        """Return what each broker knows of the group, by broker name.

        Raises:
            InvalidGroupError: the name is not valid.
            GroupNotFoundError: no broker knows the group.
        """
        check_group(group)
        # All groups, because asking for one makes it on brokers that make groups by themselves.
        tables = await ask_all(await self._masters(), calls_admin_groups.group_table)
        known = {
            name: table.groups[group] for name, table in tables.items() if group in table.groups
        }
        if not known:
            raise _unknown(group)
        return known

    async def describe_group(self, group: str) -> GroupDescription:
        """Return who consumes as a group, and how far it is.

        Raises:
            InvalidGroupError: the name is not valid.
            GroupNotFoundError: no broker knows the group.
        """
        check_group(group)
        found = await self.describe_groups([group])
        if not found:
            raise _unknown(group)
        if len(found[0].members) <= 1:
            return found[0]
        told = await ask_all(await self._masters(), lambda server: _differences(server, group))
        every = dict.fromkeys(text for part in told.values() for text in part)
        return replace(found[0], differences=tuple(every))

    async def describe_groups(self, groups: Iterable[str] | None = None) -> list[GroupDescription]:
        """Return who consumes as each group, and how far it is, sorted by name.

        Args:
            groups: their names, of which unknown ones are left out; None for all.
        """
        masters = await self._masters()
        tables = await ask_all(masters, calls_admin_groups.group_table)
        known = {name for table in tables.values() for name in table.groups}
        turn = asyncio.Semaphore(GROUPS_AT_A_TIME)

        async def look(group: str) -> GroupDescription:
            knowing = {name: masters[name] for name, part in tables.items() if group in part.groups}
            async with turn:
                return await _describe(group, knowing)

        wanted = known if groups is None else known.intersection(groups)
        return list(await asyncio.gather(*map(look, sorted(wanted))))

    async def create_group(
        self,
        group: SubscriptionGroup,
        *,
        broker_name: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a consumer group on all brokers, or replace what they know of it.

        Args:
            group: all that is to be known. Attributes are set; others that it has stay.
            broker_name: only on that broker.
            cluster: only on the brokers of that cluster.

        Raises:
            InvalidGroupError: the name is not valid.
            NoRouteError: there is no such broker or cluster, or no broker at all.
        """
        check_group(group.group_name)
        masters = await self._masters(broker_name=broker_name, cluster=cluster)
        for server in masters.values():
            await calls_admin_groups.create_group(server, group)

    async def update_group(
        self,
        group: str,
        *,
        broker_name: str | None = None,
        cluster: str | None = None,
        **changes: Unpack[GroupChanges],
    ) -> None:
        """Change settings of a consumer group on the brokers that know it; the others stay.

        Args:
            group: its name.
            broker_name: only on that broker.
            cluster: only on the brokers of that cluster.
            changes: attributes of `SubscriptionGroup`, by name.

        Raises:
            InvalidGroupError: the name is not valid.
            NoRouteError: there is no such broker or cluster.
            GroupNotFoundError: none of these brokers knows the group.
        """
        check_group(group)
        masters = await self._masters(broker_name=broker_name, cluster=cluster)
        tables = await ask_all(masters, calls_admin_groups.group_table)
        known = {name: table.groups.get(group) for name, table in tables.items()}
        if not any(known.values()):
            raise _unknown(group)
        for name, current in known.items():
            if current is not None:
                changed = replace(current, **changes)
                await calls_admin_groups.create_group(masters[name], changed)

    async def delete_group(self, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a consumer group on all brokers; one that does not exist is no error.

        Live members make it again by their next heartbeat, where brokers make groups by
        themselves. Its retry and dead-letter topics stay.

        Args:
            group: its name.
            clean_offsets: forget its committed offsets too, which cannot be undone.

        Raises:
            InvalidGroupError: the name is not valid.
        """
        check_group(group)
        for server in (await self._masters()).values():
            await calls_admin_groups.delete_group(server, group, clean_offsets=clean_offsets)


def _unknown(group: str) -> GroupNotFoundError:
    return GroupNotFoundError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows the group {group}"
    )


async def _describe(group: str, knowing: Mapping[str, Server]) -> GroupDescription:
    """Return who consumes as a group that these brokers know."""
    stats, members = await asyncio.gather(
        ask_all(knowing, lambda server: calls_admin_groups.consume_stats(server, group)),
        ask_all(knowing, lambda server: live_members(server, group)),
    )
    offsets = {queue: found for part in stats.values() for queue, found in part.offsets.items()}
    return GroupDescription(
        group,
        tuple(sorted({member for ids in members.values() for member in ids})),
        dict(sorted(offsets.items())),
        sum(part.consume_tps for part in stats.values()),
    )


async def _differences(server: Server, group: str) -> Sequence[str]:
    """Return where members that one broker knows subscribe to different things."""
    try:
        return (await calls_admin_clients.consumer_connection(server, group)).differences
    except ConsumerNotOnlineError:
        return ()


async def live_members(server: Server, group: str) -> list[str]:
    """Return the client ids of the group's members that are connected to one broker."""
    try:
        return await calls_admin_groups.consumer_ids(server, group)
    except RemoteSystemError:
        return []  # how brokers say that nobody is there
