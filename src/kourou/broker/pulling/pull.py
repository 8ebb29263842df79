"""PULL_MESSAGE (11): return messages of one queue, or hold the request until some arrive.

`verdicts.py` has the rules of pulls: which are refused, and which messages a permitted one selects.

Messages are sent as ranges of stored bytes, without an object for a message. Messages and queue
entries that are not in memory are read off the event loop. A pull whose first message is damaged is
refused with code 1 and an error that identifies the record. Consumers retry later and lose nothing.

A request that finds nothing new is held if it asks for that. It then takes an entry in a table
(`held_pulls.py`) until a message arrives, its time is over or its connection closes; after the
first two it is served again, without being held a second time.

A pull whose client has a newer subscription than the broker is also held, until the client has sent
its subscription on request (`subscriptions.py`).

The first pull of a group after an offset reset (`admin_offsets.py`) is answered with code 21 and
the new offset, whatever it asks for. A pull that is held at the reset is answered at once.

Source: PullMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.consuming.offset_handlers import is_for_deleted_topic, recreated_remark
from kourou.broker.context import BrokerContext
from kourou.broker.pulling.filtered_reads import ArrivalFilter, FilteredReads
from kourou.broker.pulling.held_pulls import HeldPulls, SharedReads
from kourou.broker.pulling.pull_checks import Pull, PullChecks
from kourou.broker.pulling.suggested_broker import SuggestedBroker
from kourou.broker.pulling.verdicts import message_limit
from kourou.broker.pulling.verified_reads import DAMAGE_REMEDY, VerifiedReads
from kourou.errors import DamagedRecordError
from kourou.filter.tags import matches_code
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand, response
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.remoting.connection import Connection, Request
from kourou.remoting.dispatch import reply_with
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import GetPlan, GetRequest, GetResult, GetStatus

log = logging.getLogger(__name__)

_PROPERTIES_SIZE_USUAL: Final = 256
_OUTDATED: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_LATEST, ResponseCode.FILTER_DATA_NOT_LATEST}
)

AskMember = Callable[[Connection, str, str, Callable[[], None]], bool]
"""Requests a group member's subscription to a topic by its connection; see `Subscriptions`."""


class PullHandler:
    """Serves pulls on the general path, at once or when messages arrive."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        checks: PullChecks,
        offsets: ConsumerOffsets,
        reads: VerifiedReads,
        held: HeldPulls,
        ask_member: AskMember,
        code_of: Callable[[ResponseCode], ResponseCode] = lambda code: code,
    ) -> None:
        """Serve the pulls that `checks` permit.

        Args:
            context: the broker's state and services.
            checks: decide whether a pull is permitted.
            offsets: store the offsets that pulls commit.
            reads: read and verify messages.
            held: the held pulls.
            ask_member: requests a subscription newer than the broker's.
            code_of: returns the code of an answer without messages, from that of a master.
        """
        self._config = context.live_config
        self._checks = checks
        self._offsets = offsets
        self._reader = context.store.reader
        self._reads = reads
        self._later = context.later
        self._stats = context.stats
        self._held = held
        self._ask_member = ask_member
        self._code_of = code_of
        self._filtered = FilteredReads(reads)
        self._suggested = SuggestedBroker(context)
        self._arrival_filter = ArrivalFilter(context.store)

    def on_pull_message(self, request: Request) -> RemotingCommand | None:
        """Answer with messages or the next offset; None if the request is answered later."""
        header = request.command.header(PullMessageRequestHeader)
        return self._serve(request, header, is_first=True)

    def _is_answered_by_member(self, request: Request, header: PullMessageRequestHeader) -> bool:
        """Ask the member for its subscription; return whether that will answer the pull."""

        def serve() -> None:
            if request.connection.is_open:  # else the pull would consume a pending offset reset
                self.serve_again(request, header)

        return self._ask_member(request.connection, header.consumer_group, header.topic, serve)

    def serve_again(self, request: Request, header: PullMessageRequestHeader | None = None) -> None:
        """Answer a pull that was held; never raises.

        Args:
            request: the pull.
            header: its header, if it has been decoded.
        """

        def serve() -> RemotingCommand | None:
            decoded = header or request.command.header(PullMessageRequestHeader)
            return self._serve(request, decoded, is_first=False)

        reply_with(request, serve)

    def _serve(
        self, request: Request, header: PullMessageRequestHeader, *, is_first: bool
    ) -> RemotingCommand | None:
        """Check and read. Only a request that has not been held commits, and may be held."""
        pull = self._checks.check(request, header)
        if isinstance(pull, RemotingCommand):
            if is_first and pull.code in _OUTDATED and self._is_answered_by_member(request, header):
                return None
            return pull
        if is_for_deleted_topic(request.command, self._reader.topic_begin(header.topic)):
            text = recreated_remark(header.topic)
            return response(request.command, ResponseCode.TOPIC_NOT_EXIST, text)
        key = (header.consumer_group, header.topic, header.queue_id)
        reset_to = self._offsets.take_reset(*key)
        if reset_to is not None:
            # The offset that the pull commits is from before the reset, and is ignored.
            return self._answer_reset(pull, reset_to)
        if (
            is_first
            and pull.spec.is_committing
            and header.commit_offset >= 0
            and not self._offsets.is_behind_pops(*key, header.commit_offset)
        ):
            end = self._reader.max_offset(header.topic, header.queue_id)
            host = request.remote_address[0]
            self._offsets.commit_within(*key, header.commit_offset, end, host)
        get_request = self._read_request(pull)
        if pull.filter is None:
            found = self._reads.read_resident(header.topic, header.queue_id, get_request)
        else:
            found = self._filtered.read_resident(
                header.topic, header.queue_id, get_request, pull.filter
            )
        if found is None:
            self._later.answer(pull.request, partial(self._read_later, pull, get_request))
            return None
        plan = self._corrected(header, found.plan)
        self._offsets.note_pulled(*key, plan.next_offset)
        if plan.status is GetStatus.FOUND:
            self._count(header, found)
            return self._answer(pull, plan, ResponseCode.SUCCESS, found.body)
        self._stats.on_miss()
        code = self._code_of(_code(plan.status, header.queue_offset))
        if code is ResponseCode.PULL_NOT_FOUND and is_first and self._hold(pull):
            return None
        return self._answer(pull, plan, code)

    def _corrected(self, header: PullMessageRequestHeader, plan: GetPlan) -> GetPlan:
        """Replace the next offset of a client beyond the queue's end by that of its group."""
        if plan.status is not GetStatus.OFFSET_OVERFLOW_BADLY:
            return plan
        key = (header.consumer_group, header.topic, header.queue_id)
        bounds = (plan.min_offset, plan.max_offset)
        return plan._replace(next_offset=self._offsets.resume_offset(*key, bounds))

    async def _read_later(self, pull: Pull, get_request: GetRequest) -> RemotingCommand:
        """Read from disk, and return the answer."""
        header, began_ms = pull.header, steady_ms()
        try:
            if pull.filter is None:
                found = await self._reads.read(header.topic, header.queue_id, get_request)
            else:
                where = (header.topic, header.queue_id)
                found = await self._filtered.read(*where, get_request, pull.filter)
        except DamagedRecordError as error:
            command = pull.request.command
            return response(command, ResponseCode.SYSTEM_ERROR, f"{error}; {DAMAGE_REMEDY}")
        plan = self._corrected(header, found.plan)
        self._offsets.note_pulled(
            header.consumer_group, header.topic, header.queue_id, plan.next_offset
        )
        if plan.status is GetStatus.FOUND:
            self._count(header, found, steady_ms() - began_ms, is_cold=True)
            return self._answer(pull, plan, ResponseCode.SUCCESS, found.body)
        self._stats.on_miss()
        # Not held: the client pulls again, and then finds the messages in memory.
        return self._answer(pull, plan, self._code_of(_code(plan.status, header.queue_offset)))

    def _answer_reset(self, pull: Pull, reset_to: int) -> RemotingCommand:
        """Return an answer that moves the client to the offset set by an administrator."""
        key = (pull.header.topic, pull.header.queue_id)
        bounds = (self._reader.min_offset(*key), self._reader.max_offset(*key))
        self._offsets.note_pulled(pull.header.consumer_group, *key, reset_to)
        plan = GetPlan(GetStatus.OFFSET_RESET, reset_to, *bounds, ranges=[], count=0)
        return self._answer(pull, plan, ResponseCode.PULL_OFFSET_MOVED)

    def _read_request(self, pull: Pull) -> GetRequest:
        header, subscription = pull.header, pull.subscription
        config = self._config.current
        return GetRequest(
            header.queue_offset,
            message_limit(pull.spec, config),
            config.pull_bytes_max,
            partial(matches_code, subscription) if subscription.code_set else None,
        )

    def _answer(
        self, pull: Pull, plan: GetPlan, code: ResponseCode, body: bytes = b""
    ) -> RemotingCommand:
        """Return the answer with its header, which clients read for each of the four codes."""
        header, command, flags = pull.header, pull.request.command, pull.topic.topic_sys_flag
        suggested = self._suggested.id_after(pull.group, header.topic, header.queue_id, plan)
        return RemotingCommand(
            code,
            answer_fields(plan, flags, pull.group.group_sys_flag, suggested),
            body,
            opaque=command.opaque,
            flag=FLAG_RESPONSE,
            remark=plan.status.name,
            serialize_type=command.serialize_type,
        )

    def _count(
        self,
        header: PullMessageRequestHeader,
        found: GetResult,
        took_ms: int = 0,
        *,
        is_cold: bool = False,
    ) -> None:
        """Count the messages returned; reads from memory count as taking no time."""
        where = (header.consumer_group, header.topic, header.queue_id)
        count, size_bytes = found.plan.count, len(found.body)
        self._stats.on_get(*where, count, size_bytes, took_ms)
        if is_cold:
            self._stats.on_cold_get(*where, count, size_bytes)

    def _hold(self, pull: Pull) -> bool:
        """Hold the request if it asks for that and there is room; return whether it is held."""
        header, request = pull.header, pull.request
        if request.is_oneway:
            return False
        is_held = self._held.hold(
            _Held(self, request, header),
            (header.topic, header.queue_id, header.queue_offset),
            pull.subscription,
            pull.spec.suspend_ms,  # 0 if it does not ask to be held
            sum(len(name) + len(text) for name, text in request.command.ext_fields.items()),
            None if pull.filter is None else partial(self._arrival_filter.is_wanted, pull.filter),
            0 if pull.filter is None else pull.filter.cost(_PROPERTIES_SIZE_USUAL),
        )
        if is_held:
            # The body has no meaning, and would take memory for as long as the pull is held.
            request.command.body = b""
        return is_held


class _Held:
    """A pull held by the general path; see `HeldPull`."""

    __slots__ = ("_handler", "_header", "_request")

    def __init__(
        self, handler: PullHandler, request: Request, header: PullMessageRequestHeader
    ) -> None:
        self._handler = handler
        self._request = request
        self._header = header

    @property
    def group(self) -> str:
        return self._header.consumer_group

    @property
    def connection(self) -> Connection:
        return self._request.connection

    def serve_again(self, _: SharedReads) -> None:
        self._handler.serve_again(self._request, self._header)


def _code(status: GetStatus, queue_offset: int) -> ResponseCode:
    """Return the response code for a read without messages."""
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


def answer_fields(
    plan: GetPlan, topic_sys_flag: int, group_sys_flag: int, suggested_id: int
) -> dict[str, str]:
    """Return the header fields of an answer."""
    return {
        "suggestWhichBrokerId": str(suggested_id),
        "nextBeginOffset": str(plan.next_offset),
        "minOffset": str(plan.min_offset),
        "maxOffset": str(plan.max_offset),
        "topicSysFlag": str(topic_sys_flag),
        "groupSysFlag": str(group_sys_flag),
    }
