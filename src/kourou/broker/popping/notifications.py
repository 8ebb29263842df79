"""NOTIFICATION (200054): tell whether a pop would get messages; POLLING_INFO (200055).

A notification that finds no messages is held like a pop (`pop_holds.py`), in a table of its own.
The queues of the topic are looked at first, then the retry topic. If only a few messages are left
in a queue, and the request has a filter by tags, they are matched with it.

Source: NotificationProcessor.java, PollingInfoProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.pop_facts import pop_facts, retry_topics_of, set_born_time
from kourou.broker.popping.pop_filters import ArrivalPopFilter, PopFilter
from kourou.broker.popping.pop_holds import ALL_QUEUES, HandledRequest, HoldResult, PopHolds
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.pop_starts import PopStarts
from kourou.broker.popping.pop_verdicts import (
    HOLD_MARGIN_MS,
    ReadTarget,
    judge_filter,
    judge_reader,
)
from kourou.broker.pulling.filtered_reads import ArrivalFilter
from kourou.broker.pulling.verdicts import Refusal
from kourou.filter.tags import matches_code
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.popping.headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from kourou.remoting.connection import Request

MATCHED_MAX: Final = 32
"""Limit on the queue entries that are matched with a filter."""
JAVA_REMARK: Final = "not set any response code"
"""The remark of Java's answers that set none."""

IsBlocked = Callable[[PopQueue, str | None], bool]
"""Tells whether an ordered pop with an attempt id would get nothing from a queue."""


class NotificationHandlers:
    """Serves NOTIFICATION and POLLING_INFO."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        starts: PopStarts,
        holds: PopHolds,
        held_pops: PopHolds,
        is_blocked: IsBlocked,
    ) -> None:
        """Serve requests.

        Args:
            context: the broker's state and services.
            starts: the offsets at which groups pop.
            holds: the held notifications.
            held_pops: the held pops, which POLLING_INFO counts.
            is_blocked: the state of queues that are popped in order.
        """
        self._context = context
        self._reader = context.store.reader
        self._starts = starts
        self._holds = holds
        self._held_pops = held_pops
        self._is_blocked = is_blocked
        self._arrivals = ArrivalFilter(context.store)

    def on_notification(self, request: Request) -> RemotingCommand | None:
        """Answer whether there are messages, or hold the request."""
        set_born_time(request, self._context.clock.now_ms())
        return self._serve(request, request.command.header(NotificationRequestHeader))

    def on_polling_info(self, request: Request) -> RemotingCommand:
        """Return the number of held pops of a queue id."""
        command = request.command
        header = command.header(PollingInfoRequestHeader)
        target = ReadTarget(header.consumer_group, header.topic, header.queue_id)
        facts = pop_facts(self._context, request, header.topic, header.consumer_group)
        found = judge_reader(target, facts)
        if isinstance(found, Refusal):
            return response(command, found.code, found.text, PollingInfoResponseHeader(0))
        count = self._held_pops.count_of(header.topic, header.consumer_group, header.queue_id)
        return response(
            command, ResponseCode.SUCCESS, JAVA_REMARK, PollingInfoResponseHeader(count)
        )

    def _serve(self, request: Request, header: NotificationRequestHeader) -> RemotingCommand | None:
        command, group = request.command, header.consumer_group
        target = ReadTarget(group, header.topic, header.queue_id)
        facts = pop_facts(self._context, request, header.topic, group)
        found = judge_reader(target, facts)
        if isinstance(found, Refusal):
            return _refusal(command, found)
        pop_filter = judge_filter(header)
        if isinstance(pop_filter, Refusal):
            return _refusal(command, pop_filter)
        self._context.groups.get_or_create(group, request.remote_address[0])
        topic, _ = found
        queues = self._queues(header, topic)
        if any(self._has_messages(queue, header, pop_filter) for queue in queues):
            return _answer(command, has_messages=True)
        result = self._hold(request, header, pop_filter)
        if result is HoldResult.HELD:
            return None
        return _answer(command, has_messages=False, is_full=result is HoldResult.FULL)

    def _queues(self, header: NotificationRequestHeader, topic: TopicConfig) -> Iterator[PopQueue]:
        """Yield the queues of the topic, or the one of the request, then those of retry topics."""
        group = header.consumer_group
        ids = range(topic.read_queue_nums) if header.queue_id < 0 else (header.queue_id,)
        for queue_id in ids:
            yield PopQueue(topic.name, group, queue_id)
        if header.order:
            return
        for retry in retry_topics_of(self._context, topic.name, group):
            for queue_id in range(0 if retry is None else retry.read_queue_nums):
                assert retry is not None, "it has queues"
                yield PopQueue(retry.name, group, queue_id)

    def _has_messages(
        self,
        queue: PopQueue,
        header: NotificationRequestHeader,
        pop_filter: PopFilter | None,
    ) -> bool:
        topic, _, queue_id = queue
        if header.order and self._is_blocked(queue, header.attempt_id):
            return False
        offset = max(self._starts.peek(queue), self._reader.min_offset(topic, queue_id))
        left = self._reader.max_offset(topic, queue_id) - offset
        if left <= 0 or pop_filter is None or pop_filter.by_properties is not None:
            return left > 0
        config = self._context.live_config.current.pop
        if not config.use_message_filter_for_notification:
            return True
        if left >= config.max_message_filter_num_for_notification:
            return True
        entries = self._reader.own_entries(topic, queue_id, offset, MATCHED_MAX)
        if entries is None or left > len(entries):
            return True
        return any(matches_code(pop_filter.subscription, code) for _, _, code in entries)

    def _hold(
        self, request: Request, header: NotificationRequestHeader, pop_filter: PopFilter | None
    ) -> HoldResult:
        if header.poll_time <= 0 or request.is_oneway:
            return HoldResult.NOT_ASKED
        request.command.body = b""
        now_ms = self._context.clock.now_ms()
        return self._holds.hold(
            HandledRequest(request, partial(self._serve, request, header)),
            (header.topic, header.consumer_group, max(ALL_QUEUES, header.queue_id)),
            header.born_time + header.poll_time - HOLD_MARGIN_MS - now_ms,
            None if pop_filter is None else ArrivalPopFilter(pop_filter, self._arrivals),
        )


def _refusal(command: RemotingCommand, refusal: Refusal) -> RemotingCommand:
    header = NotificationResponseHeader(has_msg=False)
    return response(command, refusal.code, refusal.text, header)


def _answer(
    command: RemotingCommand, *, has_messages: bool, is_full: bool = False
) -> RemotingCommand:
    header = NotificationResponseHeader(has_messages, is_full)
    return response(command, ResponseCode.SUCCESS, JAVA_REMARK, header)
