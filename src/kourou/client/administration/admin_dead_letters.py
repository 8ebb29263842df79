"""AdminClient: the dead letters of a consumer group, and sending them again.

What was sent again is noted twice: how far `redrive_all` has come is committed for the group
TOOLS_CONSUMER in the dead-letter topic, and each message that is sent names the dead letter it was.
So after a crash or an error the same call goes on, and a message that was sent just before is found
by its id and not sent again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kourou.client import calls_consume
from kourou.client.administration import calls_admin_offsets
from kourou.client.administration.admin_calls import Server
from kourou.client.administration.admin_messages import TOOLS_GROUP, MessageAdmin
from kourou.client.administration.dead_letters import DeadMessage, redriven
from kourou.client.calls_send import Outgoing, send_command, send_message
from kourou.client.pull_result import PullResult, PullStatus
from kourou.client.send_receipt import SendReceipt
from kourou.errors import (
    NoRouteError,
    QueryNotFoundError,
    RemoteError,
    TopicNotFoundError,
    UsageError,
)
from kourou.filter.tags import parse_tags
from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.route import publish_queues, subscribe_queues
from kourou.model.subscription import SUB_ALL
from kourou.model.topic import DLQ_PREFIX, check_group, dlq_topic
from kourou.protocol.codes import ResponseCode
from kourou.protocol.message_decoding import decode_messages

DEAD_LETTERS_DEFAULT: Final = 64
"""Dead letters that are listed, unless told otherwise."""

_PULL_MAX: Final = 32
"""Messages between two commits of a redrive: a crash leaves so many to be found by their ids."""
_PULL_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Redrive:
    """What became of the dead letters of one call.

    Attributes:
        sent: how many were sent.
        skipped: how many had been sent before.
        unchecked: of those sent, how many a broker could not tell whether they had been before:
            its index is off, or they have no id.
    """

    sent: int = 0
    skipped: int = 0
    unchecked: int = 0

    def __add__(self, other: Redrive) -> Redrive:
        """Return both together."""
        return Redrive(
            self.sent + other.sent,
            self.skipped + other.skipped,
            self.unchecked + other.unchecked,
        )


class DeadLetterAdmin(MessageAdmin):
    """Lists dead letters and sends them again."""

    async def dead_letters(
        self, group: str, *, begin_ms: int = 0, max_messages: int = DEAD_LETTERS_DEFAULT
    ) -> list[DeadMessage]:
        """Return the first dead letters of the group since a time, sorted by when they died.

        Args:
            group: its name.
            begin_ms: died at this time or later, in epoch ms.
            max_messages: at most so many.

        Returns:
            None of them if the group has no dead-letter topic, which its first dead letter makes.

        Raises:
            UsageError: `max_messages` is not positive.
            NoPermissionError: the topic cannot be read, as RocketMQ before 4.9 made it.
        """
        check_group(group)
        if max_messages < 1:
            raise UsageError(f"max_messages is {max_messages}: at least 1")
        found: list[list[DeadMessage]] = []
        for queue, server in await self._dead_queues(group):
            progress = await self._progress(server, queue)
            at = await calls_admin_offsets.offset_at(server, queue, begin_ms)
            some: list[DeadMessage] = []
            while len(some) < max_messages:
                result = await _pull(server, queue, at)
                some += [
                    DeadMessage(group, one, is_redriven=one.queue_offset < progress)
                    for one in (result.messages if result.status is PullStatus.FOUND else ())
                ]
                if result.next_offset <= at or result.next_offset >= result.max_offset:
                    break
                at = result.next_offset
            found.append(some)
        return list(heapq.merge(*found, key=lambda dead: dead.died_at_ms))[:max_messages]

    async def redrive(
        self, group: str, message: MessageExt, *, to_topic: bool = False, again: bool = False
    ) -> SendReceipt | None:
        """Send one dead letter again, with fresh counts; it stays where it is.

        Args:
            group: whose dead letter it is.
            message: the dead letter, as any call here returned it.
            to_topic: to the topic that it was first sent to, where all groups get it; else the
                group alone does. The way for a group that consumes in order from Java's brokers:
                they take all that comes to the retry topic of such a group for dead.
            again: also if it was sent again before.

        Returns:
            Where it is stored now; None: it was sent again before.

        Raises:
            UsageError: it is no dead letter of the group.
            TopicNotFoundError: the topic that it goes to is gone.
            TransportError: no answer came; calling it again finds out whether it is stored.
        """
        check_group(group)
        if message.topic != dlq_topic(group):
            raise UsageError(
                f"message {message.msg_id} is in {message.topic}, not in {dlq_topic(group)}"
            )
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        server = (await self._topic_masters(message.topic)).get(queue.broker_name)
        if server is None:
            raise NoRouteError(f"{queue.broker_name} has no master with {message.topic}")
        # Once more, with its body as it is stored: compressed, it may be larger than any limit.
        for one in _stored(await _pull(server, queue, message.queue_offset)):
            if one.queue_offset == message.queue_offset:
                receipt, _ = await self._redrive(DeadMessage(group, one), to_topic, again=again)
                return receipt
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND, f"{queue} holds {message.queue_offset} no longer"
        )

    async def redrive_all(
        self,
        group: str,
        *,
        to_topic: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> Redrive:
        """Send all dead letters again that no call before has sent, oldest first.

        Those that die while it runs are left to the next call. It stops at the first failure; the
        same call then goes on. Two at a time may send a message twice.

        Args:
            group: whose dead letters.
            to_topic: as in `redrive`.
            on_progress: told how many were looked at since it was told last.

        Raises:
            TopicNotFoundError: a topic that one goes to is gone.
            TransportError, RemoteError: as any send.
        """
        check_group(group)
        total = Redrive()
        for queue, server in await self._dead_queues(group):
            end = await calls_consume.max_offset(
                server.pool, server.address, queue, timeout_s=server.timeout_s
            )
            at = await self._progress(server, queue)
            while at < end:
                result = await _pull(server, queue, at)
                stored = [one for one in _stored(result) if one.queue_offset < end]
                done = at
                try:
                    for one in stored:
                        total += await self._count(DeadMessage(group, one), to_topic)
                        done = one.queue_offset + 1
                    done = max(done, min(result.next_offset, end))
                finally:
                    if done > at:
                        await calls_admin_offsets.commit(server, TOOLS_GROUP, queue, done)
                if on_progress is not None:
                    on_progress(done - at)
                if done <= at:
                    break
                at = done
        return total

    async def _count(self, dead: DeadMessage, to_topic: bool) -> Redrive:  # noqa: FBT001
        receipt, is_checked = await self._redrive(dead, to_topic, again=False)
        if receipt is None:
            return Redrive(skipped=1)
        return Redrive(sent=1, unchecked=0 if is_checked else 1)

    async def _redrive(
        self,
        dead: DeadMessage,
        to_topic: bool,  # noqa: FBT001
        *,
        again: bool,
    ) -> tuple[SendReceipt | None, bool]:
        """Send it unless it was; return where it is now, and whether that could be looked up."""
        if to_topic and dead.topic.startswith(DLQ_PREFIX):
            raise UsageError(
                f"message {dead.message.msg_id} does not tell which topic it was sent to: "
                "send it to the group instead"
            )
        outgoing = redriven(dead, to_topic=to_topic)
        was_sent = None if again else await self._was_sent(dead.message, outgoing.topic)
        if was_sent:
            return None, True
        return await self._send(dead, outgoing), was_sent is not None

    async def _was_sent(self, dead: MessageExt, topic: str) -> bool | None:
        """Return whether the dead letter was sent to the topic before; None: nobody can tell."""
        unique_id = dead.properties.get(names.UNIQ_KEY)
        if unique_id is None:
            return None
        try:
            copies = await self.messages_by_unique_key(topic, unique_id, begin_ms=dead.store_at_ms)
        except QueryNotFoundError as error:
            return None if "index" in error.remark else False  # off, or being made
        except RemoteError as error:
            if error.retriable or isinstance(error, TopicNotFoundError):
                raise
            return None
        place = dead.offset_msg_id
        return any(copy.properties.get(names.REDRIVEN_FROM) == place for copy in copies)

    async def _send(self, dead: DeadMessage, outgoing: Outgoing) -> SendReceipt:
        """Store it on the broker of the dead letter if that has the topic, else on another."""
        route = await self.topic_route(outgoing.topic)
        queues = publish_queues(outgoing.topic, route)
        near = [one for one in queues if one.broker_name == dead.message.broker_name]
        if not queues:
            raise NoRouteError(f"no broker takes messages of {outgoing.topic}")
        queue = self._instance.runtime.random.choice(near or queues)
        server = self._server(route.master_address(queue.broker_name) or "")
        command = send_command(outgoing, queue, dead.group, dead.message.born_at_ms, 1)
        [receipt] = await send_message(
            server.pool, server.address, command, outgoing, queue, timeout_s=server.timeout_s
        )
        return receipt

    async def _dead_queues(self, group: str) -> list[tuple[MessageQueue, Server]]:
        topic = dlq_topic(group)
        try:
            route = await self.topic_route(topic)
        except TopicNotFoundError:
            return []
        masters = await self._topic_masters(topic)
        return [
            (queue, masters[queue.broker_name])
            for queue in subscribe_queues(topic, route)
            if queue.broker_name in masters
        ]

    async def _progress(self, server: Server, queue: MessageQueue) -> int:
        """Return the queue offset of the first dead letter that `redrive_all` has not sent."""
        committed = await calls_consume.query_offset(
            server.pool,
            server.address,
            TOOLS_GROUP,
            queue,
            zero_if_new=False,
            timeout_s=server.timeout_s,
        )
        return committed or 0


async def _pull(server: Server, queue: MessageQueue, offset: int) -> PullResult:
    return await calls_consume.pull(
        server.pool,
        server.address,
        TOOLS_GROUP,
        queue,
        offset,
        subscription=parse_tags(queue.topic, SUB_ALL),
        max_messages=_PULL_MAX,
        max_bytes=_PULL_BYTES_MAX,
        timeout_s=server.timeout_s,
    )


def _stored(result: PullResult) -> list[MessageExt]:
    """Return the messages with their bodies as they are stored."""
    if result.status is not PullStatus.FOUND:
        return []
    messages = decode_messages(result.raw, decompress=False)
    for message in messages:
        message.broker_name = result.queue.broker_name
    return messages
