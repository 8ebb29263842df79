"""Fast path of pops: POP_MESSAGE (200050) without command, header or answer objects.

A frame is accepted only if it has all of these properties:

    header      JSON, the fields that clients write, numbers in canonical form; not one-way
    verdict     it is permitted and takes all messages (`pop_verdicts.py`), in any order; its group
                is saved; no offset reset is pending
    messages    at least one, in queues whose messages are all in memory and were read before; none
                in a retry topic. Or none at all, and the pop asks to be held
    checkpoint  it waits in the timer: the messages are invisible for more than a second; the merge
                buffer is empty and off

All other frames are left to the general path (`pop.py`), which serves every request; nothing has
changed by then. A held pop that has become unusual by the time it is woken is passed on too, but
answered here when its time is over. Both paths read the same queues in the same order, store the
same checkpoints (`revive_puts.py`) and send the same answers;
`tests/broker/popping/test_fast_pops.py` compares them.

Source: see `kourou.broker.popping.pop`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.fast_requests import FastRequests
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint, start_text
from kourou.broker.popping.checkpoint_writer import CheckpointWriter, ConsecutiveCheckpoint
from kourou.broker.popping.fast_acks import FastAcks
from kourou.broker.popping.plain_pops import PlainPop, PlainPops, decode_pop
from kourou.broker.popping.pop import PopHandler
from kourou.broker.popping.pop_answers import NOTHING, found_fields, refusal_answer
from kourou.broker.popping.pop_facts import set_born_time
from kourou.broker.popping.pop_holds import ALL_QUEUES, HoldResult, PopHolds
from kourou.broker.popping.pop_run import PERCENT, PopQueue, queue_ids
from kourou.broker.popping.pop_starts import PopStarts
from kourou.broker.popping.pop_verdicts import (
    HOLD_MARGIN_MS,
    PopFacts,
    is_late,
    judge_pop,
)
from kourou.broker.popping.popped_filters import PoppedFilters, Use
from kourou.broker.popping.revive_log import ReviveLog
from kourou.broker.pulling.verdicts import Refusal
from kourou.broker.topic_attributes import has_priorities
from kourou.broker.writing.put import CODES, PutResult, PutStatus
from kourou.decimals import decimal_or
from kourou.errors import ProtocolError
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.frame import HEADER_AT, decode_frame, frame_of
from kourou.protocol.popping.info_strings import ENTRY_END, offsets_entry, start_offset_entry
from kourou.remoting.connection import Connection, Request
from kourou.remoting.dispatch import reply_error

log = logging.getLogger(__name__)

_FRAME_BYTES_MAX: Final = 4096
"""A typical frame has about 400 bytes."""
_CODE: Final = slice(HEADER_AT + len('{"code":'), HEADER_AT + len('{"code":') + 6)
_POP_CODE: Final = b"%d" % RequestCode.POP_MESSAGE
_OVER: Final = "end of the hold"
"""Reason for a pop that found nothing and whose time is over."""


class _Found(NamedTuple):
    """Messages that were found in one queue."""

    queue: PopQueue
    start: int
    messages: int
    body: bytes


@dataclass(slots=True, eq=False)
class _Pop:
    """One pop in progress, or held; see `HeldRequest`.

    Attributes:
        born_ms: when the client sent it, or when it arrived if the client does not tell.
        frame: the whole frame while it is held; empty while it was never held.
        size: its size as counted among the unanswered requests, in bytes.
        found: the messages found, by queue.
        rest: messages that are left in the queues.
        readable: queues that have messages beyond those that were read, and are not locked.
    """

    path: FastPops
    connection: Connection
    cached: PlainPop
    born_ms: int
    opaque: int
    size: int
    frame: bytes = b""
    found: Sequence[_Found] = ()
    rest: int = 0
    readable: Sequence[PopQueue] = ()
    revive_queue: int = 0
    pop_time_ms: int = 0

    def serve_again(self) -> None:
        self.path.serve_again(self)


@dataclass(frozen=True, slots=True)
class FastPopParts:
    """Components that the fast path shares with the general path.

    Attributes:
        handler: serves pops on the general path, and has the locks.
        starts: the times of pops.
        buffer_is_empty: whether no checkpoint is in the merge buffer.
        writer: commits the offsets of stored checkpoints.
        release: makes the messages of checkpoints of a revive queue visible at once.
        filters: notes the filters of pops.
    """

    handler: PopHandler
    starts: PopStarts
    offsets: ConsumerOffsets
    buffer_is_empty: Callable[[], bool]
    revive_log: ReviveLog
    writer: CheckpointWriter
    holds: PopHolds
    release: Callable[[Sequence[PopCheckpoint], int], None]
    filters: PoppedFilters


class FastPops(FastRequests):
    """Serves pops and acks on the fast path; see `FastRequests`."""

    def __init__(self, context: BrokerContext, parts: FastPopParts, acks: FastAcks) -> None:
        """Serve pops by `parts`, and acks by `acks`."""
        codes = (
            RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE,
        )  # fmt: skip
        super().__init__(codes, _FRAME_BYTES_MAX)
        self._context = context
        self._live = context.live_config
        self._topics, self._groups = context.topics, context.groups
        self._reader, self._store_writer = context.store.reader, context.store.writer
        self._stats, self._clock = context.stats, context.clock
        self._random = context.random
        self._broker_name = context.config.broker_name
        self._parts = parts
        self._locked = parts.handler.locked
        self._acks = acks
        self._pops = PlainPops()

    def _serve(
        self, connection: Connection, buffer: bytearray, start: int, header_end: int, end: int
    ) -> str | None:
        """Serve the pop or the acks of a frame."""
        size = end - start - 4
        if not connection.unanswered.has_room(size, 1):
            return "connection"
        code = buffer[start + _CODE.start : start + _CODE.stop]
        header_text = buffer[start + HEADER_AT : header_end]
        if code != _POP_CODE:
            return self._acks.serve(connection, code, header_text, buffer[header_end:end], size)
        try:
            header = decode_pop(header_text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return "header"
        fields = header.extFields
        born_ms, cached = decimal_or(fields.born_time, -1), self._pops.of(fields)
        if cached is None or born_ms < 0:
            return "number"
        born_ms = born_ms or self._clock.now_ms()  # as `set_born_time`
        pop = _Pop(self, connection, cached, born_ms, header.opaque, size)
        reason = self._serve_pop(pop, buffer, start, end)
        if reason is None:
            connection.unanswered.add_all(size, 1)
        return reason

    def _serve_pop(self, pop: _Pop, buffer: bytearray, start: int, end: int) -> str | None:
        """Store the checkpoints of a pop, or hold it; return the reason if it is declined."""
        now_ms, header = self._clock.now_ms(), pop.cached.header
        reason = self._permit(pop, now_ms)
        if reason is None:
            reason = self._read(pop)
        if reason is not None:
            return reason
        if pop.found:
            reason = self._put(pop, now_ms)
        else:
            pop.frame = pop.frame or bytes(buffer[start:end])
            reason = self._hold(pop, now_ms)
        if reason is None:
            use = Use(pop.connection.remote_address, now_ms)
            self._parts.filters.note(
                header.topic, header.consumer_group, header.exp_type, header.exp, use
            )
        return reason

    # Check

    def _permit(self, pop: _Pop, now_ms: int) -> str | None:
        """Return why the general path must serve a pop; None if it is permitted."""
        cached, config = pop.cached, self._live.current
        header, parts = cached.header, self._parts
        if is_late(pop.born_ms, header.poll_time, now_ms):
            return "late"
        topic, group = self._topics.get(header.topic), self._groups.get(header.consumer_group)
        if cached.permitted is None or not (
            cached.config is config and cached.topic is topic and cached.group is group
        ):
            reason = self._judge(cached, pop, config, now_ms)
            if reason is not None:
                return reason
        if not self._groups.is_saved(header.consumer_group):
            return "group"
        if config.pop.enable_pop_buffer_merge or not parts.buffer_is_empty():
            return "buffer"
        if parts.offsets.has_resets:
            return "offset reset"
        return None

    def _judge(self, cached: PlainPop, pop: _Pop, config: BrokerConfig, now_ms: int) -> str | None:
        """Cache the verdict on a pop; return why the general path must serve it."""
        header, context = cached.header, self._context
        topic, group = self._topics.get(header.topic), self._groups.get(header.consumer_group)
        if group is None:
            return "group"
        client = pop.connection.remote_address
        host = context.store_host or pop.connection.local_address
        header.born_time = pop.born_ms
        verdict = judge_pop(header, PopFacts(config, host[0], now_ms, topic, group, client))
        if isinstance(verdict, Refusal):
            return verdict.reason
        if verdict.filter is not None:
            return "filter"
        if header.order:
            return "order"
        if header.max_msg_nums <= 0:
            return "count"
        if has_priorities(verdict.topic):
            return "priority"
        if config.pop.enable_pop_message_threshold:
            return "threshold"
        cached.config, cached.topic, cached.group = config, topic, group
        cached.permitted = verdict
        names = (header.topic, header.consumer_group)
        cached.queues = {
            queue_id: PopQueue(*names, queue_id)
            for queue_id in range(verdict.topic.read_queue_nums)
        }
        return None

    # Read

    def _read(self, pop: _Pop) -> str | None:
        """Read the queues as `PopHandler` does; return why the general path must do that."""
        cached, config = pop.cached, self._live.current
        header, permitted = cached.header, cached.permitted
        assert permitted is not None, "it was judged"
        for retry_topic in cached.retry_topics:
            retry = self._topics.get(retry_topic)
            if retry is not None and self._has_messages(retry, header.consumer_group):
                return "retry"
        ids: Sequence[int] = (header.queue_id,)
        if header.queue_id < 0:
            first = self._random.randrange(PERCENT)
            ids = queue_ids(permitted.topic, first, config.pop)
        return self._read_queues(pop, ids, config.pull_bytes_max)

    def _read_queues(self, pop: _Pop, ids: Sequence[int], bytes_max: int) -> str | None:
        """Read these queues in this order; see `_read`. Most have no messages to pop."""
        header, queues, locked = pop.cached.header, pop.cached.queues, self._locked
        topic, room = header.topic, header.max_msg_nums
        offsets = self._parts.offsets.of_queues(header.consumer_group, topic)
        max_offset, get_fast = self._reader.max_offset, self._reader.get_fast
        found: list[_Found] = []
        readable: list[PopQueue] = []
        rest = 0
        for queue_id in ids:
            start, end = offsets.get(queue_id), max_offset(topic, queue_id)
            if start is None or start > end:
                return "offset"
            if start == end:
                continue
            queue = queues[queue_id]
            if not room or queue in locked:
                rest += end - start
                if queue not in locked:
                    readable.append(queue)
                continue
            result = get_fast(topic, queue_id, start, room, bytes_max)
            if result is None:
                return "messages not found"
            messages = result.next_offset - start
            found.append(_Found(queue, start, messages, b"".join(result.records)))
            room -= messages
            rest += result.max_offset - result.next_offset
        pop.found, pop.rest, pop.readable = found, rest, readable
        return None

    def _has_messages(self, retry: TopicConfig, group: str) -> bool:
        """Return whether a retry topic may have messages for the group."""
        offsets = self._parts.offsets.of_queues(group, retry.name)
        for queue_id in range(retry.read_queue_nums):
            if offsets.get(queue_id) != self._reader.max_offset(retry.name, queue_id):
                return True
        return False

    # Store and answer

    def _put(self, pop: _Pop, now_ms: int) -> str | None:
        """Store the checkpoints of what was found; return why the general path must do that."""
        parts, header = self._parts, pop.cached.header
        topic, group = header.topic, header.consumer_group
        starts = {start_text(topic, group, one.queue[2], one.start) for one in pop.found}
        if len(starts) < len(pop.found):
            return "start"  # see `PopTimes`
        if not parts.revive_log.is_due_later(now_ms, header.invisible_time):
            return "invisible time"
        pop.revive_queue = parts.revive_log.next_queue()
        pop.pop_time_ms = parts.starts.times.take(starts, now_ms)
        added = [
            ConsecutiveCheckpoint(
                self._key(pop, one), one.messages, one.start + one.messages, header.invisible_time
            )
            for one in pop.found
        ]
        self._locked.update([one.queue for one in pop.found])
        try:
            parts.writer.put_consecutive(added, pop.revive_queue, partial(self._stored, pop))
        except BaseException:
            self._unlock(pop)
            raise
        return None

    def _key(self, pop: _Pop, one: _Found) -> CheckpointKey:
        topic, group, queue_id = one.queue
        return CheckpointKey(topic, group, queue_id, one.start, pop.pop_time_ms, self._broker_name)

    def _stored(self, pop: _Pop, result: PutResult) -> None:
        """Answer, when the checkpoints are stored and the offsets committed, or refused."""
        try:
            if result.status is PutStatus.OK:
                self._answer(pop)
            else:
                text = f"the checkpoint was not stored: {result.status.name}: {result.reason}"
                request = _request_of(pop)
                request.reply(refusal_answer(request.command, CODES[result.status], text))
        except Exception as error:  # noqa: BLE001 - it becomes the answer, and is logged there
            reply_error(_request_of(pop), error)
        finally:
            self._unlock(pop)

    def _answer(self, pop: _Pop) -> None:
        """Send the messages, or make them visible again."""
        on_get = self._stats.on_get
        for (topic, group, queue_id), _, count, body in pop.found:
            on_get(group, topic, queue_id, count, len(body), 0)
        if not pop.connection.is_open:
            self._parts.release(self._checkpoints(pop), pop.revive_queue)
            return  # its requests do not count any more
        kind = pop.cached.kind
        starts = [start_offset_entry(kind, one.queue[2], one.start) for one in pop.found]
        offsets = [
            offsets_entry(kind, one.queue[2], list(range(one.start, one.start + one.messages)))
            for one in pop.found
        ]
        header = pop.cached.template % (
            pop.pop_time_ms,
            pop.revive_queue,
            pop.rest,
            ENTRY_END.join(starts).encode(),
            ENTRY_END.join(offsets).encode(),
            pop.opaque,
        )
        answer = frame_of(header, *[one.body for one in pop.found])
        pop.connection.unanswered.remove(pop.size)
        pop.connection.send_now(answer)

    def _answer_nothing(self, pop: _Pop) -> None:
        """Answer a held pop whose time is over."""
        self._stats.on_miss()
        header, revive_queue = pop.cached.header, self._parts.revive_log.next_queue()
        now_ms = self._clock.now_ms()
        fields = found_fields(now_ms, header.invisible_time, revive_queue, pop.rest, ("", ""))
        request = _request_of(pop)
        answer = response(request.command, ResponseCode.POLLING_TIMEOUT, NOTHING)
        answer.ext_fields = fields
        request.reply(answer)

    def _checkpoints(self, pop: _Pop) -> list[PopCheckpoint]:
        return [
            PopCheckpoint(
                self._key(pop, one),
                tuple(range(one.start, one.start + one.messages)),
                pop.cached.header.invisible_time,
                log_end=self._store_writer.appended_position,
            )
            for one in pop.found
        ]

    def _unlock(self, pop: _Pop) -> None:
        """Free the queues, and wake pops that found them locked, or others for further messages."""
        for one in pop.found:
            self._locked.discard(one.queue)
        holds = self._parts.holds
        if not len(holds):
            return
        for one in pop.found:
            topic, group, queue_id = one.queue
            offset = self._parts.offsets.query(group, topic, queue_id)
            if offset is not None and self._reader.max_offset(topic, queue_id) > offset:
                holds.wake(topic, group, queue_id)
        for topic, group, queue_id in pop.readable:
            holds.wake(topic, group, queue_id)

    # Hold

    def _hold(self, pop: _Pop, now_ms: int) -> str | None:
        """Hold a pop that found nothing; return why the general path must answer it."""
        header = pop.cached.header
        if header.poll_time <= 0:
            return "messages not found"
        result = self._parts.holds.hold(
            pop,
            (header.topic, header.consumer_group, max(ALL_QUEUES, header.queue_id)),
            pop.born_ms + header.poll_time - HOLD_MARGIN_MS - now_ms,
            None,
        )
        if result is not HoldResult.HELD:
            return _OVER if result is HoldResult.LATE else "hold"
        self._stats.on_miss()
        for topic, group, queue_id in pop.readable:
            self._parts.holds.wake(topic, group, queue_id)
        return None

    def serve_again(self, pop: _Pop) -> None:
        """Serve a pop that was held; never raises."""
        try:
            reason = self._serve_pop(pop, bytearray(), 0, 0)
        except Exception:  # a failure of one pop must not affect those woken with it
            log.exception("held_pop.failed")
            reason = "failure"
        if reason is None:
            return
        if reason == _OVER:
            self._answer_nothing(pop)
            return
        self.declined[reason] += 1
        try:
            command = decode_frame(memoryview(pop.frame)[4:])
        except ProtocolError as error:  # in a part that this path does not read
            pop.connection.close(str(error))
            return
        request = Request(command, pop.connection, pop.size)
        set_born_time(request, pop.born_ms)
        self._parts.handler.serve_again(request)


def _request_of(pop: _Pop) -> Request:
    """Return the request of a pop, for an answer that is an error."""
    command = RemotingCommand(RequestCode.POP_MESSAGE, opaque=pop.opaque)
    return Request(command, pop.connection, pop.size)
