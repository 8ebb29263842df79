"""AdminClient methods for consumer offsets: report, reset and clone them.

Brokers since 5.0 store a reset themselves, and members get it by their next pull. Older brokers
send the reset to the live members; for a group without members, the new offsets are committed
instead.

Source: DefaultMQAdminExtImpl.resetOffsetByTimestamp, resetOffsetByTimestampOld.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from kourou.client import calls_consume
from kourou.client.administration import admin_groups
from kourou.client.administration.admin_calls import AdminCalls, Server, call_all
from kourou.client.administration.admin_groups import live_members
from kourou.client.administration.plain_names import with_plain_names
from kourou.errors import (
    ConsumerNotOnlineError,
    GroupNotFoundError,
    NoRouteError,
    RemoteError,
    RemoteSystemError,
    UsageError,
)
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID
from kourou.model.topic import check_group, check_topic
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.offsets import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
    decode_reset_offsets,
)
from kourou.protocol.stats import ConsumeOffset, ConsumeStats

END_OF_QUEUE: Final = -1
"""A special time that means the end of the queue."""
_FAR_FUTURE_MS: Final = 253_402_300_799_000  # the year 9999

_EARLIEST_MS: Final = 0


class QueueEnd(StrEnum):
    """An end of a queue, as the destination of a reset."""

    EARLIEST = "earliest"
    """The oldest stored message."""
    LATEST = "latest"
    """The end of the queue: all stored messages are skipped."""


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Offsets of a group in one queue, before and after a reset.

    Attributes:
        queue: the queue.
        old_offset: the committed offset before the reset; 0 also if there was none.
        new_offset: the offset after the reset.
    """

    queue: MessageQueue
    old_offset: int
    new_offset: int

    @property
    def moved(self) -> int:
        """The number of messages that are skipped (positive) or delivered again (negative)."""
        return self.new_offset - self.old_offset


class OffsetAdmin(AdminCalls):
    """Reports and changes the offsets of consumer groups."""

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return the offsets of the group in each queue of all brokers, sorted by queue.

        The result has no offsets if no broker has the group.

        Args:
            group: the consumer group.
            topic: only in this topic, which the members need not subscribe to.

        Raises:
            InvalidGroupError, InvalidTopicError: the name is not valid.
        """
        check_group(group)
        if topic is not None:
            check_topic(topic)
        masters = await self._masters()
        parts = await call_all(
            masters, lambda server: admin_groups.consume_stats(server, group, topic)
        )
        offsets = {queue: at for part in parts.values() for queue, at in part.offsets.items()}
        return ConsumeStats(
            dict(sorted(offsets.items())), sum(part.consume_tps for part in parts.values())
        )

    async def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        at_ms: int | None = None,
        to: QueueEnd | Literal["earliest", "latest"] | None = None,
        queue: MessageQueue | None = None,
        offset: int | None = None,
        dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Reset the offsets of the group, in all queues of the topic or in one.

        Give one of `at_ms`, `to` and `offset`. Live members follow by their next pull: at once with
        a Kourou broker, within its long polling of 15 s with a Java one. They finish the messages
        that they have pulled, which may be delivered again.

        Brokers are processed one after the other. When a broker has answered, the reset is durable
        there. After an error, a repeated call completes the reset.

        Args:
            group: the consumer group.
            topic: the topic; retries of the group are in `%RETRY%<group>`.
            at_ms: to the first message stored at this time or later, in epoch ms.
            to: to an end of each queue.
            queue: only in this queue.
            offset: to this queue offset; requires `queue`.
            dry_run: change nothing, and return what would be changed.

        Returns:
            The old and new offset of each queue, also of unchanged ones, sorted by queue.

        Raises:
            UsageError: not exactly one of the three is given, or an offset without a queue.
            TopicNotFoundError: the name servers do not have the topic.
            NoRouteError: no broker has the queue.
            GroupNotFoundError: a broker with the topic does not have the group.
            RemoteSystemError: the queue does not have the offset; or an old broker cannot reset
                a single queue of a group with live members.
        """
        check_group(group)
        at_ms = _check_target(topic, at_ms, to, queue, offset)
        brokers = await self._topic_brokers(group, topic, queue)
        resets: list[OffsetReset] = []
        for broker in brokers:
            if dry_run:
                new = await broker.preview(at_ms, offset)
            elif queue is None:
                new = await broker.reset(group, topic, at_ms)
            else:
                new = await broker.reset_queue(
                    group, queue, await broker.target(queue, at_ms, offset)
                )
            resets += [broker.reset_result(one, new_offset) for one, new_offset in new.items()]
        return sorted(resets, key=lambda reset: reset.queue)

    async def skip_backlog(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Reset the offsets of the group to the end of each queue; see `reset_offset`."""
        return await self.reset_offset(group, topic, to=QueueEnd.LATEST, dry_run=dry_run)

    async def clone_offsets(self, source: str, destination: str, topic: str) -> None:
        """Copy the offsets of group `source` in the topic to group `destination`.

        `destination` need not exist. If it has members, stop them before: a live member does not
        read the copied offsets, and its next commit overwrites them.

        Raises:
            InvalidGroupError: a name is not valid.
            TopicNotFoundError: the name servers do not have the topic.
            GroupNotFoundError: a broker without automatic creation of groups lacks the group.
        """
        check_group(source)
        check_group(destination)
        for server in (await self._topic_masters(topic)).values():
            await clone_offsets(server, source, destination, topic)

    async def _topic_brokers(
        self, group: str, topic: str, queue: MessageQueue | None
    ) -> list[_TopicBroker]:
        """Return the masters with the topic, or with the queue, and the group's offsets there.

        Raises:
            NoRouteError: there is no such master.
            GroupNotFoundError: one of them does not have the group.
        """
        route = await self.topic_route(topic)
        addresses = {one.broker_name: one.broker_addrs.get(MASTER_ID) for one in route.broker_datas}
        found: dict[str, tuple[Server, list[MessageQueue]]] = {}
        for data in route.queue_datas:
            queues = [
                one
                for one in (
                    MessageQueue(topic, data.broker_name, n) for n in range(data.read_queue_nums)
                )
                if queue in (None, one)
            ]
            address = addresses.get(data.broker_name)
            if queues and address is not None:
                found[data.broker_name] = self._server(address), queues
        if not found:
            what = f"queue {queue.queue_id} on {queue.broker_name}" if queue else "a readable queue"
            raise NoRouteError(f"topic {topic} has no master with {what}")
        servers = {name: server for name, (server, _) in found.items()}
        await _check_known(group, servers)
        stats = await call_all(
            servers, lambda server: admin_groups.consume_stats(server, group, topic)
        )
        return [
            _TopicBroker(server, queues, stats[name].offsets)
            for name, (server, queues) in sorted(found.items())
        ]


@dataclass(frozen=True, slots=True)
class _TopicBroker:
    """A broker, its queues to be reset, and the group's offsets there."""

    server: Server
    queues: Sequence[MessageQueue]
    offsets: Mapping[MessageQueue, ConsumeOffset]

    async def target(self, queue: MessageQueue, at_ms: int, offset: int | None) -> int:
        """Return the new offset of a queue: `offset` if given, else by time."""
        if offset is not None:
            return offset
        return await offset_at(self.server, queue, at_ms)

    async def preview(self, at_ms: int, offset: int | None) -> dict[MessageQueue, int]:
        """Return the new offsets of all queues, without resetting them."""
        targets = await asyncio.gather(*(self.target(one, at_ms, offset) for one in self.queues))
        return dict(zip(self.queues, targets, strict=True))

    async def reset(self, group: str, topic: str, at_ms: int) -> dict[MessageQueue, int]:
        """Reset all queues by time; return the new offsets."""
        try:
            return await reset_topic(self.server, group, topic, at_ms)
        except (ConsumerNotOnlineError, RemoteSystemError) as error:
            if not await self._is_offline(group, error):
                raise
            new = await self.preview(at_ms, None)
            for queue, offset in new.items():
                await commit_offset(self.server, group, queue, offset)
            return new

    async def reset_queue(
        self, group: str, queue: MessageQueue, offset: int
    ) -> dict[MessageQueue, int]:
        """Reset one queue to an offset; return the new offset.

        Raises:
            RemoteSystemError: the broker is too old to do so for a group with live members.
        """
        try:
            new = await reset_queue(self.server, group, queue, offset)
        except (ConsumerNotOnlineError, RemoteSystemError) as error:
            if not await self._is_offline(group, error):
                raise
            await commit_offset(self.server, group, queue, offset)
            return {queue: offset}
        if new.get(queue) != offset:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {queue.broker_name} cannot reset one queue of a group with live members: "
                f"stop the members of {group}, or reset the whole topic",
            )
        return {queue: offset}

    async def _is_offline(self, group: str, error: RemoteError) -> bool:
        """Return whether an older broker refused because the group has no live members.

        It is then safe to commit for the group. For a group that has not committed in every queue,
        such a broker answers that the group does not exist, before it checks for members.
        """
        if isinstance(error, ConsumerNotOnlineError):
            return True
        return "not exist" in error.remark and not await live_members(self.server, group)

    def reset_result(self, queue: MessageQueue, offset: int) -> OffsetReset:
        """Return the reset of a queue from the group's current offset to `offset`."""
        current = self.offsets.get(queue)
        return OffsetReset(queue, 0 if current is None else current.consumer_offset, offset)


def _check_target(
    topic: str,
    at_ms: int | None,
    to: str | None,
    queue: MessageQueue | None,
    offset: int | None,
) -> int:
    """Check the arguments and return the time to reset to; unused if an offset is given.

    Raises:
        UsageError: as `OffsetAdmin.reset_offset`.
    """
    if sum(value is not None for value in (at_ms, to, offset)) != 1:
        raise UsageError("pass exactly one of at_ms, to and offset")
    if queue is not None and queue.topic != topic:
        raise UsageError(f"the queue is one of topic {queue.topic}, not of {topic}")
    if offset is not None:
        if queue is None:
            raise UsageError("offset requires queue: pass both")
        if offset < 0:
            raise UsageError(f"offset is {offset}; it must be 0 or more")
    if to is not None:
        try:
            return END_OF_QUEUE if QueueEnd(to) is QueueEnd.LATEST else _EARLIEST_MS
        except ValueError:
            raise UsageError(f"to is {to!r}; it must be earliest or latest") from None
    if at_ms is not None and at_ms < 0:
        raise UsageError(f"at_ms is {at_ms}; it must be epoch milliseconds")
    return at_ms or 0


async def _check_known(group: str, servers: Mapping[str, Server]) -> None:
    """Raise, before anything is changed, if a broker does not have the group.

    Raises:
        GroupNotFoundError: one of the brokers does not have it.
    """
    tables = await call_all(servers, admin_groups.group_table)
    missing = [name for name, table in tables.items() if group not in table.groups]
    if missing:
        raise GroupNotFoundError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"group {group} does not exist on {', '.join(sorted(missing))}",
        )


# Requests to one server, without retries. They raise TransportError if no answer arrives, and
# RemoteError if the server refuses.


async def reset_topic(
    broker: Server, group: str, topic: str, at_ms: int
) -> dict[MessageQueue, int]:
    """Reset the group's offsets by time in all queues of one broker; return the new offsets.

    `at_ms` is in epoch milliseconds, or END_OF_QUEUE.
    """
    header = ResetOffsetRequestHeader(topic, group, at_ms, is_force=True)
    return await _reset(broker, header)


async def reset_queue(
    broker: Server, group: str, queue: MessageQueue, offset: int
) -> dict[MessageQueue, int]:
    """Reset the group's offset in one queue; return the new offsets.

    A broker older than 5.0 ignores the queue and the offset, and resets all queues by the time in
    the request. That time is in the future and not forced, so such a broker keeps the offset of
    each queue.
    """
    header = ResetOffsetRequestHeader(
        queue.topic, group, _FAR_FUTURE_MS, is_force=False, queue_id=queue.queue_id, offset=offset
    )
    return await _reset(broker, header)


async def clone_offsets(broker: Server, source: str, destination: str, topic: str | None) -> None:
    """Copy the offsets of one group to another on one broker, in one topic or in all."""
    header = CloneGroupOffsetRequestHeader(source, destination, topic, offline=True)
    await broker.request_body(RequestCode.CLONE_GROUP_OFFSET, header)


async def commit_offset(broker: Server, group: str, queue: MessageQueue, offset: int) -> None:
    """Commit the group's offset in one queue, as a member would."""
    await calls_consume.update_offset(
        broker.pool, broker.address, group, queue, offset, timeout_s=broker.timeout_s
    )


async def offset_at(broker: Server, queue: MessageQueue, at_ms: int) -> int:
    """Return the offset of the first message stored at a time or later, or the end of the queue."""
    if at_ms == END_OF_QUEUE:
        return await calls_consume.max_offset(
            broker.pool, broker.address, queue, timeout_s=broker.timeout_s
        )
    return await calls_consume.search_offset(
        broker.pool, broker.address, queue, at_ms, timeout_s=broker.timeout_s
    )


async def _reset(broker: Server, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
    body = await broker.request_body(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    return with_plain_names(broker.pool.namespace, decode_reset_offsets(body))
