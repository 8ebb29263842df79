"""PULL_MESSAGE (11): hand out the messages of one queue, or hold the request until there are some.

The checks come in Java's order, each with Java's code:

    16  the broker is not readable (forbiddenType 1)
    26  the group does not exist and may not be made
    16  the group may not consume (2)
    17  the topic does not exist
    16  the topic is not readable (3)
    29  the queue does not exist
    23  with its own subscription: it does not parse
    24  without: no member of the group is connected, or it did not subscribe to the topic
    16  the group reads as broadcast, which it may not (4), or may not read this topic (5)
    25  the subscription known here is older than the client's
    1   the subscription is no tag expression

What is found is sent as the ranges of stored bytes that it is, no object made of a message. A range
that is not in memory is read off the loop. A request that finds nothing new is held when it asks
for that: it then costs an entry in a table (`long_polling.py`), until a message arrives, its time
is over, or its connection closes; and is then served again, not held again.

Source: PullMessageProcessor.java, PullRequestHoldService.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from kourou.broker.clients import Clients
from kourou.broker.config import BrokerConfig
from kourou.broker.consumer_offsets import ConsumerOffsets
from kourou.broker.expressions import is_tag_expression, not_served
from kourou.broker.groups import Groups
from kourou.broker.later import LaterReplies
from kourou.broker.long_polling import Arrived, Held, LongPolling
from kourou.broker.retry_topics import TopicTable
from kourou.broker.stats import BrokerStats
from kourou.broker.steady_time import steady_ms
from kourou.errors import FilterSyntaxError
from kourou.filter.tags import matches_code, parse_tags
from kourou.model.group import MessageModel, SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand, response
from kourou.protocol.headers_consume import PullMessageRequestHeader
from kourou.remoting.connection import Connection, Request
from kourou.remoting.dispatch import reply_error
from kourou.remoting.network import format_address
from kourou.remoting.runtime import Offload
from kourou.store.message_store import GetPlan, GetStatus, MessageStore

log = logging.getLogger(__name__)

SUSPEND_MAX_MS: Final = 60_000
"""Longest time that a request is held, whatever it asks for; clients ask for 15 to 20 s. A
connection that hears nothing for 120 s is closed."""

_MASTER: Final = "0"


@dataclass(slots=True)
class _Pull:
    """A pull that may be served: the request, and what it is about."""

    request: Request
    header: PullMessageRequestHeader
    topic: TopicConfig
    group: SubscriptionGroup
    subscription: SubscriptionData


class PullHandler:
    """Serves pulls, at once or when there is something to read."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        topics: TopicTable,
        groups: Groups,
        clients: Clients,
        offsets: ConsumerOffsets,
        store: MessageStore,
        later: LaterReplies,
        stats: BrokerStats,
        offload: Offload,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._store = store
        self._later = later
        self._stats = stats
        self._offload = offload
        self._held: LongPolling[_Pull] = LongPolling(held_max=config.held_pulls_max)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held_count(self) -> int:
        """How many pulls wait for a message."""
        return len(self._held)

    def on_pull_message(self, request: Request) -> RemotingCommand | None:
        """Answer with messages or with where to go on; None when the request is held."""
        header = request.command.header(PullMessageRequestHeader)
        return self._serve(request, header, is_first=True)

    def on_arrivals(self, arrivals: Iterable[Arrived]) -> None:
        """Serve the held pulls that new messages concern; called once a turn of the loop."""
        for held in self._held.woken(arrivals):
            self._serve_again(held)

    def on_connection_closed(self, connection: Connection) -> None:
        """Forget the held pulls of a connection that has ended."""
        self._held.dropped(connection)

    def close(self) -> None:
        """Stop looking at the time; what is held is not answered any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve(
        self, request: Request, header: PullMessageRequestHeader, *, is_first: bool
    ) -> RemotingCommand | None:
        """Check and read. Only a request that was not held yet commits, and may be held."""
        pull = self._check(request, header)
        if isinstance(pull, RemotingCommand):
            return pull
        plan = self._plan(pull)
        key = (header.consumer_group, header.topic, header.queue_id)
        if is_first and header.sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(*key, header.commit_offset)
        self._offsets.note_pulled(*key, plan.next_offset)
        if plan.status is GetStatus.FOUND:
            return self._read(pull, plan)
        self._stats.on_miss()
        code = _code(plan.status, header.queue_offset)
        if code is ResponseCode.PULL_NOT_FOUND and is_first and self._hold(pull):
            return None
        return _answer(pull, plan, code)

    def _plan(self, pull: _Pull) -> GetPlan:
        header, subscription = pull.header, pull.subscription
        return self._store.plan_get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            # One message at least, as Java does, so that a group that asks for none moves on.
            max(1, min(header.max_msg_nums, self._config.pull_messages_max)),
            self._config.pull_bytes_max,
            partial(matches_code, subscription) if subscription.code_set else None,
        )

    def _read(self, pull: _Pull, plan: GetPlan) -> RemotingCommand | None:
        """Answer with the bytes of the plan, at once if they are in memory."""
        body = self._store.read_ranges(plan.ranges, may_block=False)
        if body is not None:
            self._count(pull.header, plan.count, len(body))
            return _answer(pull, plan, ResponseCode.SUCCESS, body)
        began_ms = steady_ms()

        async def read_from_disk() -> RemotingCommand:
            body = await self._offload(self._store.read_ranges, plan.ranges, may_block=True)
            if body is None:
                # Its segment was deleted meanwhile: the client goes on behind it.
                gone = plan._replace(status=GetStatus.MESSAGE_WAS_REMOVING)
                self._stats.on_miss()
                return _answer(pull, gone, ResponseCode.PULL_RETRY_IMMEDIATELY)
            self._count(pull.header, plan.count, len(body), steady_ms() - began_ms, is_cold=True)
            return _answer(pull, plan, ResponseCode.SUCCESS, body)

        self._later.answer(pull.request, read_from_disk)
        return None

    def _count(
        self,
        header: PullMessageRequestHeader,
        count: int,
        size_bytes: int,
        took_ms: int = 0,
        *,
        is_cold: bool = False,
    ) -> None:
        """Count messages that are handed out; what is in memory takes no time worth a clock."""
        where = (header.consumer_group, header.topic, header.queue_id)
        self._stats.on_get(*where, count, size_bytes, took_ms)
        if is_cold:
            self._stats.on_cold_get(*where, count, size_bytes)

    # Holding

    def _hold(self, pull: _Pull) -> bool:
        """Hold the request if it asks for that and there is room, and return whether it is held."""
        header = pull.header
        if not header.sys_flag & PULL_SUSPEND or pull.request.is_oneway:
            return False
        timeout_ms = min(header.suspend_timeout_millis, SUSPEND_MAX_MS)
        if not self._config.long_polling_enable:
            timeout_ms = min(timeout_ms, self._config.short_polling_time_ms)
        if timeout_ms <= 0:
            return False
        held = Held(
            pull,
            pull.request.connection,
            header.topic,
            header.queue_id,
            header.queue_offset,
            pull.subscription,
            steady_ms() + timeout_ms,
            sum(len(name) + len(text) for name, text in pull.request.command.ext_fields.items()),
        )
        if not self._held.hold(held):
            return False
        # A body means nothing here, but would be kept for as long as the pull is.
        pull.request.command.body = b""
        self._set_timer()
        return True

    def _set_timer(self) -> None:
        """See to it that `_expire` runs when the next pull is due."""
        due_ms = self._held.next_due_ms()
        if due_ms is None:
            return
        if self._timer is not None:
            if self._timer.when() * 1000 <= due_ms:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for held in self._held.expired(steady_ms()):
            self._serve_again(held)
        self._set_timer()

    def _serve_again(self, held: Held[_Pull]) -> None:
        """Answer a pull that was held; whatever happens to it, the next one is served too."""
        request = held.pull.request
        try:
            answer = self._serve(request, held.pull.header, is_first=False)
        except Exception as error:  # noqa: BLE001 - it becomes the answer, and is logged there
            reply_error(request, error)
            return
        if answer is not None:
            request.reply(answer)

    # Checks

    def _check(self, request: Request, header: PullMessageRequestHeader) -> _Pull | RemotingCommand:
        """Return the pull, or why it is refused."""
        command = request.command
        if not self._config.is_readable:
            return _refuse(command, ResponseCode.NO_PERMISSION, "the broker is not readable", 1)
        group = self._groups.get_or_create(header.consumer_group)
        if group is None:
            text = f"consumer group {header.consumer_group} does not exist"
            return _refuse(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        if not group.consume_enable:
            text = f"consumer group {group.group_name} may not consume"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 2)
        topic = self._topics.get(header.topic)
        if topic is None:
            text = f"topic {header.topic} does not exist"
            return _refuse(command, ResponseCode.TOPIC_NOT_EXIST, text)
        if not topic.is_readable:
            text = f"topic {topic.name} may not be read"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 3)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            text = (
                f"queue {header.queue_id} of topic {topic.name} does not exist: it has "
                f"{topic.read_queue_nums} queues to read, asked by "
                f"{format_address(request.remote_address)}"
            )
            return _refuse(command, ResponseCode.INVALID_PARAMETER, text)
        subscription = self._subscription(command, header, group)
        if isinstance(subscription, RemotingCommand):
            return subscription
        if not is_tag_expression(subscription.expression_type):
            text = not_served(subscription.expression_type)
            return _refuse(command, ResponseCode.SYSTEM_ERROR, text)
        return _Pull(request, header, topic, group, subscription)

    def _subscription(
        self, command: RemotingCommand, header: PullMessageRequestHeader, group: SubscriptionGroup
    ) -> SubscriptionData | RemotingCommand:
        """Return what the group wants of the topic, or why the pull is refused."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            return _own_subscription(command, header)
        name = group.group_name
        live = self._clients.consumer_group(name)
        if live is None:
            text = f"no consumer of group {name} is connected"
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if live.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            text = f"consumer group {name} may not consume as broadcast"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 4)
        if self._groups.is_read_forbidden(name, header.topic):
            text = f"consumer group {name} may not read topic {header.topic}"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 5)
        subscription = live.subscriptions.get(header.topic)
        if subscription is None:
            text = f"consumer group {name} did not subscribe to topic {header.topic}"
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if subscription.sub_version < header.sub_version:
            text = (
                f"the subscription of group {name} known here is of version "
                f"{subscription.sub_version}, older than the client's {header.sub_version}"
            )
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
        return subscription


def _own_subscription(
    command: RemotingCommand, header: PullMessageRequestHeader
) -> SubscriptionData | RemotingCommand:
    """Return the subscription that the request carries, or why it is refused."""
    if not is_tag_expression(header.expression_type):
        if not header.subscription:
            text = f"the {header.expression_type} expression is empty"
            return _refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
        return SubscriptionData(
            header.topic, header.subscription, expression_type=str(header.expression_type)
        )
    try:
        return parse_tags(header.topic, header.subscription, header.sub_version)
    except FilterSyntaxError as error:
        return _refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))


def _code(status: GetStatus, queue_offset: int) -> ResponseCode:
    """Return what a read that found nothing means to the client."""
    if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        # From the start of an empty queue there is nothing to correct.
        return ResponseCode.PULL_OFFSET_MOVED if queue_offset else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]


_CODES: Final = {
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


def _answer(pull: _Pull, plan: GetPlan, code: ResponseCode, body: bytes = b"") -> RemotingCommand:
    """Return the answer with its header, which clients read with each of the four codes."""
    fields = {
        "suggestWhichBrokerId": _MASTER,
        "nextBeginOffset": str(plan.next_offset),
        "minOffset": str(plan.min_offset),
        "maxOffset": str(plan.max_offset),
        "topicSysFlag": str(pull.topic.topic_sys_flag),
        "groupSysFlag": str(pull.group.group_sys_flag),
    }
    return RemotingCommand(
        code,
        fields,
        body,
        opaque=pull.request.command.opaque,
        flag=FLAG_RESPONSE,
        remark=plan.status.name,
        serialize_type=pull.request.command.serialize_type,
    )


def _refuse(
    command: RemotingCommand, code: ResponseCode, text: str, forbidden_type: int | None = None
) -> RemotingCommand:
    """Return a refusal; `forbidden_type` tells who forbids it, with code 16."""
    refusal = response(command, code, text)
    if forbidden_type is not None:
        refusal.ext_fields["forbiddenType"] = str(forbidden_type)
    return refusal
