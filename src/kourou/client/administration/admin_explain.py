"""AdminClient methods that explain why a message was or was not delivered.

The facts come from requests that brokers of both kinds serve. Kourou's brokers also report which
messages are popped and until when they are invisible, why a queue is blocked, and which member
holds the lock of a queue. Copies of a message are found by its unique id, in the key index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kourou.client.administration import admin_clients, admin_groups, admin_messages, admin_topics
from kourou.client.administration.admin_brokers import broker_config, runtime_info
from kourou.client.administration.admin_calls import Server
from kourou.client.administration.admin_messages import MessageAdmin
from kourou.client.administration.admin_pops import live_consumers
from kourou.client.administration.explanations import (
    AbsentMessage,
    DeliveryFacts,
    Explanation,
    MessageCopy,
    TimeText,
    explain_absence,
    explain_delivery,
)
from kourou.decimals import decimal_or
from kourou.errors import (
    ConfigError,
    KourouError,
    QueryNotFoundError,
    RemoteError,
)
from kourou.model import properties as names
from kourou.model.delay import DELAY_LEVELS_MS, parse_delay_levels
from kourou.model.group import ConsumeType
from kourou.model.message import MessageExt
from kourou.model.namespace import without_namespace
from kourou.model.queue import MessageQueue
from kourou.model.topic import (
    PERM_READ,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    check_group,
    dlq_topic,
    retry_topic,
)
from kourou.protocol.brokers import QueryConsumeQueueRequestHeader, decode_consume_queue
from kourou.protocol.codes import RequestCode
from kourou.protocol.groups import SubscriptionGroupTable
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.protocol.pulling import QueryMessageRequestHeader
from kourou.protocol.stats import ConsumeOffset

GROUPS_AT_A_TIME: Final = 8
MEMBERS_ASKED_MAX: Final = 32
"""Limit on the members that are asked for their queues; of a larger group, none is asked."""

_COPIES_MAX: Final = 64
_EVER_MS: Final = (1 << 63) - 1
_IN_FLIGHT_KEY: Final = "kourouPopInFlight"
_OLDEST_KEY: Final = "earliestMessageTimeStamp"
_LEVELS_KEY: Final = "messageDelayLevel"


class ExplainAdmin(MessageAdmin):
    """Explains what became of messages."""

    async def explain_message(
        self, message: MessageExt, group: str | None = None, *, time_text: TimeText = str
    ) -> list[Explanation]:
        """Return what became of a message in each group of its topic, or in one group.

        Args:
            message: a message that this client has found; it names its broker and queue.
            group: None: all groups that have offsets for the topic or subscribe to it.
            time_text: returns the text of a time in epoch ms, for the explanations.

        Raises:
            InvalidGroupError: the name is not valid.
            TopicNotFoundError: the name servers do not have the topic, or the broker does not.
        """
        if group is not None:
            check_group(group)
        server = await self._topic_master(message.topic, message.broker_name)
        if group is not None:
            groups = [group]
        else:
            groups = sorted(await admin_topics.topic_groups(server, message.topic))
        about = await _BrokerFacts.read(server, message)
        slots = asyncio.Semaphore(GROUPS_AT_A_TIME)

        async def explain(name: str) -> Explanation:
            async with slots:
                return explain_delivery(message, await about.of_group(name), time_text)

        return list(await asyncio.gather(*(explain(name) for name in groups)))

    async def explain_missing(
        self, topic: str, unique_id: str, *, time_text: TimeText = str
    ) -> Explanation | None:
        """Return why a message with a unique id is not in its topic; None if nothing is known.

        It may be a scheduled, delayed or half message, or have expired. Arguments are as for
        `explain_message`.

        Raises:
            InvalidTopicError: the topic is not a valid name.
            TopicNotFoundError: the name servers do not have the topic.
        """
        now_ms = self._instance.runtime.clock.now_ms()
        found: list[MessageCopy] = []
        oldest_ms: list[int] = []
        for server in (await self._topic_masters(topic)).values():
            pending = await _pending_copies(server, unique_id)
            halves = await _diverted_copies(server, TRANS_HALF_TOPIC, unique_id)
            found += [one for one in (*pending, *halves) if one.topic == topic]
            oldest = (await runtime_info(server)).get(_OLDEST_KEY, "")
            oldest_ms.append(decimal_or(oldest, 0))
        return explain_absence(
            found, AbsentMessage(topic, unique_id, min(oldest_ms)), time_text, now_ms
        )


class _BrokerFacts:
    """Facts of one broker about a message, for all groups."""

    def __init__(
        self,
        server: Server,
        message: MessageExt,
        *,
        groups: SubscriptionGroupTable,
        pending: Sequence[MessageCopy],
        first_offset: int,
        is_topic_readable: bool,
        reports_pops: bool,
    ) -> None:
        self._server = server
        self._message = message
        self._groups = groups
        self._pending = pending
        self._first_offset = first_offset
        self._is_topic_readable = is_topic_readable
        self._reports_pops = reports_pops

    @classmethod
    async def read(cls, server: Server, message: MessageExt) -> _BrokerFacts:
        """Request what is the same for all groups."""
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        groups, stats, config, info, pending = await asyncio.gather(
            admin_groups.group_table(server),
            admin_topics.topic_stats(server, message.topic),
            admin_topics.topic_config(server, message.topic),
            runtime_info(server),
            _pending_copies(server, _unique_id(message)),
        )
        at = stats.offsets.get(queue)
        return cls(
            server,
            message,
            groups=groups,
            pending=pending,
            first_offset=0 if at is None else at.min_offset,
            is_topic_readable=bool(config.perm & PERM_READ),
            reports_pops=_IN_FLIGHT_KEY in info,
        )

    async def of_group(self, group: str) -> DeliveryFacts:
        """Return the facts of one group."""
        server, message = self._server, self._message
        settings = self._groups.groups.get(group)
        if settings is None:
            return DeliveryFacts(group, None)
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        live, stats, visible_at_ms, copies, dead = await asyncio.gather(
            live_consumers(server, group),
            admin_groups.consume_stats(server, group, message.topic),
            _visible_at_ms(server, queue, message.queue_offset, group),
            self._retries(group),
            _copies(server, dlq_topic(group), _unique_id(message)),
        )
        members = () if live is None else tuple(one.client_id for one in live.connections)
        holders = None
        if live is not None and live.consume_type is not ConsumeType.POP:
            holders = await _holders(server, group, members, queue)
        forbidden = self._groups.forbidden.get(group, {}).get(message.topic, 0)
        return DeliveryFacts(
            group,
            settings,
            is_read_forbidden=bool(forbidden & PERM_READ),
            is_topic_readable=self._is_topic_readable,
            members=members,
            consume_type=None if live is None else live.consume_type,
            message_model=None if live is None else live.message_model,
            subscription=None if live is None else live.subscriptions.get(message.topic),
            offset=stats.offsets.get(queue),
            first_offset=self._first_offset,
            visible_at_ms=visible_at_ms,
            reports_pops=self._reports_pops,
            holders=holders,
            copies=tuple(copies),
            dead_letter=max(dead, key=lambda one: one.message.store_at_ms, default=None),
        )

    async def _retries(self, group: str) -> list[MessageCopy]:
        """Return the retries of the message in the group's retry topics, and those that wait."""
        topic, unique_id = self._message.topic, _unique_id(self._message)
        found: list[MessageCopy] = []
        retry_topics = (
            retry_topic(group),
            retry_topic_v1(group, topic),
            retry_topic_v2(group, topic),
        )
        for name in retry_topics:
            copies = [
                one
                for one in await _copies(self._server, name, unique_id)
                if one.message.properties.get(names.ORIGIN_GROUP, group) == group
            ]
            if copies:
                stats = await admin_groups.consume_stats(self._server, group, name)
                found += [await self._progress(one, group, stats.offsets) for one in copies]
        latest = max((one.message.reconsume_times for one in found), default=0)
        found += [
            one
            for one in self._pending
            if one.topic in retry_topics and one.message.reconsume_times > latest
        ]
        return found

    async def _progress(
        self, copy: MessageCopy, group: str, offsets: Mapping[MessageQueue, ConsumeOffset]
    ) -> MessageCopy:
        """Return a retry with the group's progress in its retry topic."""
        one = copy.message
        queue = MessageQueue(copy.topic, self._message.broker_name, one.queue_id)
        at = offsets.get(queue)
        committed = 0 if at is None else at.consumer_offset
        return replace(
            copy,
            is_consumed=committed > one.queue_offset,
            visible_at_ms=await _visible_at_ms(self._server, queue, one.queue_offset, group),
        )


def _unique_id(message: MessageExt) -> str | None:
    return message.properties.get(names.UNIQ_KEY)


async def _copies(server: Server, topic: str, unique_id: str | None) -> list[MessageCopy]:
    """Return the messages of a topic with a unique id; none if the broker finds none."""
    if unique_id is None:
        return []
    header = QueryMessageRequestHeader(
        topic=topic,
        key=unique_id,
        max_num=_COPIES_MAX,
        begin_timestamp=0,
        end_timestamp=_EVER_MS,
        index_type="U",
        is_unique_key=True,
    )
    try:
        found = await admin_messages.query_messages(server, header)
    except (QueryNotFoundError, RemoteError):
        return []
    return [
        MessageCopy(one, topic) for one in found if one.properties.get(names.UNIQ_KEY) == unique_id
    ]


async def _diverted_copies(server: Server, topic: str, unique_id: str | None) -> list[MessageCopy]:
    """Return the copies in a topic of the broker, under the topic of their destination."""
    return [
        replace(one, topic=without_namespace(server.pool.namespace, destination))
        for one in await _copies(server, topic, unique_id)
        if (destination := one.message.properties.get(names.REAL_TOPIC)) is not None
    ]


async def _pending_copies(server: Server, unique_id: str | None) -> list[MessageCopy]:
    """Return the copies that wait for their time, by delay level or in the timer."""
    delayed, scheduled = await asyncio.gather(
        _diverted_copies(server, SCHEDULE_TOPIC, unique_id),
        _diverted_copies(server, TIMER_TOPIC, unique_id),
    )
    found = []
    if delayed:
        levels_ms = _levels_ms(await broker_config(server))
        for one in delayed:
            level = one.message.delay_level or one.message.queue_id + 1
            if 1 <= level <= len(levels_ms):
                due_at_ms = one.message.store_at_ms + levels_ms[level - 1]
                found.append(replace(one, due_at_ms=due_at_ms))
    for one in scheduled:
        out_ms = decimal_or(one.message.properties.get(names.TIMER_OUT_MS, ""), 0)
        if due_ms := one.message.deliver_at_ms or out_ms:
            found.append(replace(one, due_at_ms=due_ms))
    return found


def _levels_ms(config: Mapping[str, str]) -> tuple[int, ...]:
    """Return the delay levels of a broker."""
    try:
        return parse_delay_levels(config[_LEVELS_KEY])
    except (KeyError, ConfigError):
        return DELAY_LEVELS_MS


async def _visible_at_ms(
    server: Server, queue: MessageQueue, offset: int, group: str
) -> int | None:
    """Return when a message in flight is visible again; None if it is not, or not reported."""
    header = QueryConsumeQueueRequestHeader(queue.topic, queue.queue_id, offset, 1, group)
    try:
        body = await server.request_body(RequestCode.QUERY_CONSUME_QUEUE, header)
    except RemoteError:
        return None  # the queue was deleted meanwhile
    entries = decode_consume_queue(body).queue_data if body else ()
    return entries[0].visible_at_ms if entries else None


async def _holders(
    server: Server, group: str, members: Sequence[str], queue: MessageQueue
) -> tuple[str, ...] | None:
    """Return the members that hold a queue; None if they cannot all be asked."""
    if not 0 < len(members) <= MEMBERS_ASKED_MAX:
        return None
    try:
        infos = await asyncio.gather(
            *(admin_clients.running_info(server, group, name, stack=False) for name in members)
        )
    except KourouError:
        return None
    return tuple(name for name, info in zip(members, infos, strict=True) if queue in info.queues)
