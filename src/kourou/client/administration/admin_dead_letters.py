"""AdminClient methods for dead letters: list and redrive them.

Progress is stored in two ways. `redrive_all` commits its offset for the group TOOLS_CONSUMER in the
dead-letter topic, and each redriven message has the id of its dead letter as a property. After a
crash or an error the same call continues from the offset. Messages that were sent after the last
commit are found by their ids, and are not sent again.

`kourou.model.redrive` has the rule by which dead letters are copied and copies are recognized; the
pipeline `redrive` follows it too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.client import calls_consume
from kourou.client.administration import admin_messages, admin_offsets
from kourou.client.administration.admin_calls import Server
from kourou.client.administration.admin_messages import MESSAGES_DEFAULT, MessageAdmin, lacks_index
from kourou.client.calls_send import Outgoing, send_command, send_message
from kourou.client.namespacing import remove_namespace
from kourou.client.pull_result import PullResult, PullStatus
from kourou.client.send_receipt import SendReceipt
from kourou.errors import (
    NoRouteError,
    QueryNotFoundError,
    RemoteError,
    TopicNotFoundError,
    TransportError,
    UsageError,
)
from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.properties import encode_properties
from kourou.model.queue import MessageQueue
from kourou.model.redrive import (
    copies_since_ms,
    is_redriven_copy,
    origin_topic,
    redriven_properties,
)
from kourou.model.route import MASTER_ID, publish_queues, subscribe_queues
from kourou.model.sysflag import COMPRESSED, COMPRESSION_MASK
from kourou.model.topic import DLQ_PREFIX, TOOLS_GROUP, check_group, dlq_topic, retry_topic
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.decode import decode_messages

DEAD_LETTERS_DEFAULT: Final = 64
"""Default number of dead letters that are listed."""

_PULL_MAX: Final = 32
"""Messages between two commits of a redrive: at most this number must be found by id after a
crash."""


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """One dead letter.

    Attributes:
        group: the consumer group that failed to consume the message.
        message: the message as stored in the group's dead-letter topic.
        is_redriven: `redrive_all` has sent it again. False does not exclude a call of `redrive`.
    """

    group: str
    message: MessageExt
    is_redriven: bool = False

    @property
    def topic(self) -> str:
        """The topic to which the producer sent the message; the dead-letter topic if unknown."""
        return origin_topic(self.message.properties) or dlq_topic(self.group)

    @property
    def reason(self) -> str | None:
        """The reason why the last delivery failed; None if the consumer gave none."""
        return self.message.properties.get(names.DLQ_REASON)

    @property
    def deliveries(self) -> int:
        """The number of times that the message was sent back."""
        return self.message.reconsume_times

    @property
    def died_at_ms(self) -> int:
        """The time at which it became a dead letter, in epoch ms."""
        return self.message.store_at_ms


@dataclass(frozen=True, slots=True)
class Redrive:
    """Result of a redrive.

    Attributes:
        sent: number of dead letters that were sent.
        skipped: number of dead letters that had been sent before.
        unchecked: number of sent ones for which an earlier send could not be ruled out: they have
            no id, the key index of a broker is off, or another broker was not reached.
        left: broker name -> error, for brokers some of whose dead letters remain for another call:
            the broker itself, or the destination of a dead letter, was not reached.
    """

    sent: int = 0
    skipped: int = 0
    unchecked: int = 0
    left: Mapping[str, TransportError] = field(default_factory=dict)

    def __add__(self, other: Redrive) -> Redrive:
        """Return the sum of two results."""
        return Redrive(
            self.sent + other.sent,
            self.skipped + other.skipped,
            self.unchecked + other.unchecked,
            {**self.left, **other.left},
        )


@dataclass(frozen=True, slots=True)
class _Backlog:
    """The dead letters of one queue that a call processes: queue offsets `begin` to `end`."""

    server: Server
    queue: MessageQueue
    begin: int
    end: int


class DeadLetterAdmin(MessageAdmin):
    """Lists and redrives dead letters."""

    async def dead_letters(
        self, group: str, *, begin_ms: int = 0, max_messages: int = DEAD_LETTERS_DEFAULT
    ) -> list[DeadMessage]:
        """Return the first dead letters of the group since a time, sorted by the time they died.

        Args:
            group: the consumer group.
            begin_ms: only dead letters from this time on, in epoch ms.
            max_messages: maximum number of dead letters.

        Returns:
            The dead letters; an empty list if the group has no dead-letter topic, which is created
            by its first dead letter.

        Raises:
            UsageError: `max_messages` is not positive.
            NoPermissionError: the topic is not readable, if created by RocketMQ before 4.9.
        """
        check_group(group)
        if max_messages < 1:
            raise UsageError(f"max_messages is {max_messages}: it must be at least 1")
        found: list[list[DeadMessage]] = []
        for queue, server in await self._dead_queues(group):
            if server is None:
                continue
            redriven_until = await self._redriven_until(server, queue)
            at = await admin_offsets.offset_at(server, queue, begin_ms)
            letters: list[DeadMessage] = []
            while len(letters) < max_messages:
                result = await admin_messages.read_queue(server, queue, at, _PULL_MAX)
                letters += [
                    DeadMessage(group, one, is_redriven=one.queue_offset < redriven_until)
                    for one in (result.all_messages if result.status is PullStatus.FOUND else ())
                ]
                if result.next_offset <= at or result.next_offset >= result.max_offset:
                    break
                at = result.next_offset
            found.append(letters)
        return list(heapq.merge(*found, key=lambda dead: dead.died_at_ms))[:max_messages]

    async def redrive(
        self, group: str, message: MessageExt, *, to_topic: bool = False, again: bool = False
    ) -> SendReceipt | None:
        """Redrive one dead letter, with its delivery counts reset; the dead letter stays stored.

        Args:
            group: the consumer group.
            message: the dead letter, as returned by another method.
            to_topic: send to the topic of the original message, so that all groups get it;
                otherwise only the group gets it, by its retry topic. Needed for a group that
                consumes in order from Java's brokers, which move every message sent to the retry
                topic of such a group to the dead letters.
            again: send even if it was redriven before.

        Returns:
            The receipt; None if the dead letter was redriven before.

        Raises:
            UsageError: the message is not a dead letter of the group.
            TopicNotFoundError: the destination topic does not exist any more.
            TransportError: no answer arrived; a repeated call detects whether the message is
                stored.
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
        # Read it again to get the body as stored: decompressed, it may exceed the size limits.
        result = await admin_messages.read_queue(server, queue, message.queue_offset, 1)
        for one in _stored(result, server.pool.namespace):
            if one.queue_offset == message.queue_offset:
                receipt, _ = await self._redrive(DeadMessage(group, one), to_topic, again=again)
                return receipt
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND, f"{queue} no longer has offset {message.queue_offset}"
        )

    async def redrive_all(
        self,
        group: str,
        *,
        to_topic: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Redrive:
        """Redrive all dead letters that no earlier call has sent, the oldest of each queue first.

        Dead letters that are added during the call are left to the next one. A broker that is not
        reached is skipped; the first refusal ends the call. In both cases, and after a
        cancellation, a repeated call continues. Concurrent calls may send a message twice.

        Args:
            group: the consumer group.
            to_topic: as in `redrive`.
            on_progress: called with the number of dead letters processed so far and in total.

        Raises:
            TopicNotFoundError: a destination topic does not exist any more.
            ConnectFailedError: no name server answered.
            RemoteError: as any send.
        """
        check_group(group)
        done, backlogs = Redrive(), []
        for queue, server in await self._dead_queues(group):
            if server is None:
                error = NoRouteError(f"{queue.broker_name} has no master")
                done += Redrive(left={queue.broker_name: error})
                continue
            try:
                backlogs.append(await self._backlog(server, queue))
            except TransportError as error:
                done += Redrive(left={queue.broker_name: error})
        total, processed = sum(backlog.end - backlog.begin for backlog in backlogs), 0

        def report(count: int) -> None:
            nonlocal processed
            processed += count
            if on_progress is not None:
                on_progress(processed, total)

        for backlog in backlogs:
            done += await self._redrive_queue(group, backlog, report, to_topic=to_topic)
        return done

    async def redriven_offsets(self, group: str) -> dict[MessageQueue, int]:
        """Return for each queue of the dead-letter topic the offset up to which all are redriven.

        `redrive_all` has processed the dead letters before that offset.

        Raises:
            TransportError: a broker with dead letters did not answer.
        """
        check_group(group)
        return {
            queue: await self._redriven_until(server, queue)
            for queue, server in await self._dead_queues(group)
            if server is not None
        }

    async def _backlog(self, server: Server, queue: MessageQueue) -> _Backlog:
        """Return the dead letters of the queue that are to be processed."""
        pool, address, timeout_s = server.pool, server.address, server.timeout_s
        end = await calls_consume.max_offset(pool, address, queue, timeout_s=timeout_s)
        low = await calls_consume.min_offset(pool, address, queue, timeout_s=timeout_s)
        begin = max(low, await self._redriven_until(server, queue))
        return _Backlog(server, queue, min(begin, end), end)

    async def _redrive_queue(
        self, group: str, backlog: _Backlog, report: Callable[[int], None], *, to_topic: bool
    ) -> Redrive:
        """Redrive the dead letters of one queue, until a broker is not reached."""
        server, queue, at = backlog.server, backlog.queue, backlog.begin
        namespace = server.pool.namespace
        total = Redrive()
        try:
            while at < backlog.end:
                result = await admin_messages.read_queue(server, queue, at, _PULL_MAX)
                stored = [
                    one for one in _stored(result, namespace) if one.queue_offset < backlog.end
                ]
                done = at
                try:
                    for one in stored:
                        total += await self._count(DeadMessage(group, one), to_topic)
                        done = one.queue_offset + 1
                    done = max(done, min(result.next_offset, backlog.end))
                finally:
                    if done > at:
                        await admin_offsets.commit_offset(server, TOOLS_GROUP, queue, done)
                        report(done - at)
                if done <= at:
                    break
                at = done
        except TransportError as error:
            total += Redrive(left={queue.broker_name: error})
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
        """Send a dead letter unless it was sent before, or `again` is set.

        Returns the receipt (None if it was sent before), and whether an earlier send could be
        checked.
        """
        if to_topic and dead.topic.startswith(DLQ_PREFIX):
            raise UsageError(
                f"message {dead.message.msg_id} does not contain its original topic: send it to "
                "the group instead"
            )
        outgoing = _redrive_message(dead, to_topic=to_topic)
        was_sent = None if again else await self._was_sent(dead.message, outgoing.topic)
        if was_sent:
            return None, True
        return await self._send(dead, outgoing), was_sent is not None

    async def _was_sent(self, dead: MessageExt, topic: str) -> bool | None:
        """Return whether the dead letter was sent to the topic before; None if that is unknown."""
        unique_id = dead.properties.get(names.UNIQ_KEY)
        if unique_id is None:
            return None
        span = (copies_since_ms(dead.store_at_ms), None)
        try:
            answers = await self._query_masters(topic, unique_id, "U", span, MESSAGES_DEFAULT)
        except RemoteError as error:
            if error.retriable or isinstance(error, TopicNotFoundError):
                raise
            return None
        is_certain, same_broker = True, answers.get(dead.broker_name)
        for answer in answers.values():
            if isinstance(answer, list):
                if any(
                    is_redriven_copy(one.properties, dead.offset_msg_id, unique_id)
                    for one in answer
                ):
                    return True
            elif isinstance(answer, QueryNotFoundError):
                is_certain = is_certain and not lacks_index(answer)
            elif same_broker is None or same_broker is answer:
                raise answer  # this broker would have the copy
            else:
                is_certain = False
        return False if is_certain else None

    async def _send(self, dead: DeadMessage, outgoing: Outgoing) -> SendReceipt:
        """Send to the broker of the dead letter if it has the topic, else to another one."""
        route = await self.topic_route(outgoing.topic)
        queues = publish_queues(outgoing.topic, route)
        same_broker = [one for one in queues if one.broker_name == dead.message.broker_name]
        if not queues:
            raise NoRouteError(f"topic {outgoing.topic} has no writable queue")
        queue = self._instance.runtime.random.choice(same_broker or queues)
        server = self._server(route.master_address(queue.broker_name) or "")
        command = send_command(outgoing, queue, dead.group, dead.message.born_at_ms, 1)
        [receipt] = await send_message(
            server.pool, server.address, command, outgoing, queue, timeout_s=server.timeout_s
        )
        return receipt

    async def _dead_queues(self, group: str) -> list[tuple[MessageQueue, Server | None]]:
        """Return the queues of the dead-letter topic, each with its master if there is one."""
        topic = dlq_topic(group)
        try:
            route = await self.topic_route(topic)
        except TopicNotFoundError:
            return []
        masters = {
            one.broker_name: self._server(one.broker_addrs[MASTER_ID])
            for one in route.broker_datas
            if MASTER_ID in one.broker_addrs
        }
        return [(queue, masters.get(queue.broker_name)) for queue in subscribe_queues(topic, route)]

    async def _redriven_until(self, server: Server, queue: MessageQueue) -> int:
        """Return the queue offset of the first dead letter not yet redriven by `redrive_all`."""
        committed = await calls_consume.query_offset(
            server.pool,
            server.address,
            TOOLS_GROUP,
            queue,
            zero_if_new=False,
            timeout_s=server.timeout_s,
        )
        return committed.offset or 0


def _stored(result: PullResult, namespace: str) -> list[MessageExt]:
    """Return the messages of a pull with their bodies as stored, not decompressed."""
    if result.status is not PullStatus.FOUND:
        return []
    messages = decode_messages(result.raw, decompress=False)
    remove_namespace(namespace, messages)
    for message in messages:
        message.broker_name = result.queue.broker_name
    return messages


def _redrive_message(dead: DeadMessage, *, to_topic: bool) -> Outgoing:
    """Return the message by which a dead letter is redriven.

    Args:
        dead: the dead letter with its body as stored, possibly compressed.
        to_topic: send to the original topic, for all its groups; otherwise to the group's retry
            topic, for the group alone.
    """
    message = dead.message
    properties = redriven_properties(message.properties, message.offset_msg_id, to_topic=to_topic)
    return Outgoing(
        dead.topic if to_topic else retry_topic(dead.group),
        (message.msg_id,),
        message.body,
        encode_properties(properties).decode(),
        message.flag,
        message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
    )
