"""POP_MESSAGE (200050): return messages, which become invisible for a time, or hold the request.

    check        `pop_verdicts.py`
    read         queue by queue, from the group's offset, until the answer is full; a queue with
                 messages is locked until they are stored in a checkpoint, so that no other pop gets
                 them too
    checkpoint   one for each queue, all in one put; it names the messages and when they are visible
                 again
    commit       when the checkpoints are as durable as the flush mode requires, the group's offset
                 is moved behind the messages
    answer       the stored bytes

A pop that finds nothing is held (`pop_holds.py`) until a message arrives, or a queue that was
locked is free and has more. One that asks for no messages is answered when its time is over. If
the checkpoints cannot be stored, the pop is answered with the error and the offsets stay. If the
answer cannot be sent, the messages are made visible at once.

Source: PopMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint, start_text
from kourou.broker.popping.checkpoint_writer import NewCheckpoint
from kourou.broker.popping.ordered import OrderedPops
from kourou.broker.popping.pop_answers import (
    body_of,
    empty_answer,
    found_answer,
    refusal_answer,
)
from kourou.broker.popping.pop_facts import pop_facts, retry_topics_of, set_born_time
from kourou.broker.popping.pop_filters import ArrivalPopFilter
from kourou.broker.popping.pop_holds import (
    ALL_QUEUES,
    NO_QUEUE,
    HandledRequest,
    HoldResult,
    PopHolds,
)
from kourou.broker.popping.pop_reads import (
    PopReads,
    QueueRead,
    ReadPlace,
    without_other_groups,
)
from kourou.broker.popping.pop_run import Popped, PopQueue, PopRun, PopStep, pop_steps
from kourou.broker.popping.pop_starts import PopStarts
from kourou.broker.popping.pop_verdicts import HOLD_MARGIN_MS, PermittedPop, judge_pop
from kourou.broker.popping.popped_filters import PoppedFilters, Use
from kourou.broker.pulling.filtered_reads import ArrivalFilter
from kourou.broker.pulling.verdicts import Refusal
from kourou.broker.pulling.verified_reads import DAMAGE_REMEDY
from kourou.broker.writing.put import CODES, Done, PutResult, PutStatus
from kourou.errors import DamagedRecordError
from kourou.model.topic import is_retry_topic
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.popping.headers import PopMessageRequestHeader
from kourou.protocol.popping.topic_names import ORDER_REVIVE_QUEUE
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import reply_error, reply_with

log = logging.getLogger(__name__)


class Checkpoints(Protocol):
    """Stores checkpoints of pops; see `CheckpointWriter` and `EscapedCheckpoints`."""

    def has_too_many(self, queue: PopQueue) -> bool: ...

    def put(self, added: Sequence[NewCheckpoint], revive_queue: int, done: Done, /) -> None: ...

    def skip(self, queue: PopQueue, next_offset: int) -> None: ...


class PopHandler:
    """Serves POP_MESSAGE.

    Attributes:
        locked: queues whose messages are read, or stored in a checkpoint, by a pop.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        starts: PopStarts,
        offsets: ConsumerOffsets,
        reads: PopReads,
        writer: Checkpoints,
        next_queue: Callable[[], int],
        ordered: OrderedPops,
        holds: PopHolds,
        release: Callable[[Sequence[PopCheckpoint], int], None],
        filters: PoppedFilters,
    ) -> None:
        """Serve pops.

        Args:
            context: the broker's state and services.
            starts: the offsets at which groups read.
            offsets: committed offsets.
            reads: read and verify messages.
            writer: stores checkpoints, and moves offsets.
            next_queue: returns the queue for the checkpoints of a pop.
            ordered: the order infos.
            holds: the held pops.
            release: makes the messages of checkpoints of a revive queue visible at once.
            filters: notes the filters of pops.
        """
        self._context = context
        self._config = context.live_config
        self._reader = context.store.reader
        self._starts = starts
        self._offsets = offsets
        self._reads = reads
        self._writer = writer
        self._next_queue = next_queue
        self._ordered = ordered
        self._holds = holds
        self._release = release
        self._filters = filters
        self._arrivals = ArrivalFilter(context.store)
        self.locked: Final[set[PopQueue]] = set()

    def on_pop_message(self, request: Request) -> RemotingCommand | None:
        """Answer with messages, or hold the request; None if it is answered later."""
        set_born_time(request, self._context.clock.now_ms())
        return self._serve(request, request.command.header(PopMessageRequestHeader))

    def serve_again(self, request: Request) -> None:
        """Serve a request that another path has held; never raises."""
        reply_with(request, partial(self.on_pop_message, request))

    # Check and read

    def _serve(self, request: Request, header: PopMessageRequestHeader) -> RemotingCommand | None:
        permitted = judge_pop(
            header, pop_facts(self._context, request, header.topic, header.consumer_group)
        )
        if isinstance(permitted, Refusal):
            return refusal_answer(request.command, permitted.code, permitted.text)
        use = Use(request.remote_address, self._context.clock.now_ms())
        self._filters.note(header.topic, header.consumer_group, header.exp_type, header.exp, use)
        run = self._new_run(request, header, permitted)
        if not self._context.groups.is_saved(header.consumer_group):
            self._context.later.answer(request, partial(self._read_for_new_group, run))
            return None
        return self._read(run)

    async def _read_for_new_group(self, run: PopRun) -> RemotingCommand | None:
        """Create the group, durably, and read: checkpoints of missing groups are not revived."""
        groups, request = self._context.groups, run.request
        groups.get_or_create(run.header.consumer_group, request.remote_address[0])
        await groups.persist()
        return self._read(run)

    def _new_run(
        self, request: Request, header: PopMessageRequestHeader, permitted: PermittedPop
    ) -> PopRun:
        retry = retry_topics_of(self._context, header.topic, header.consumer_group)
        config = self._config.current.pop
        steps = pop_steps(header, permitted, retry, config, self._context.random)
        queue_id = ORDER_REVIVE_QUEUE if header.order else self._next_queue()
        return PopRun(request, header, permitted, steps, queue_id)

    def _read(self, run: PopRun) -> RemotingCommand | None:
        """Read all queues from memory, and finish the pop; continue later if one is on disk."""
        try:
            is_complete = self._read_resident(run)
        except BaseException:
            self._unlock_all(run)
            raise
        if is_complete:
            return self._finish(run)
        self._context.later.answer(run.request, partial(self._read_cold, run))
        return None

    async def _read_cold(self, run: PopRun) -> RemotingCommand | None:
        """Read the remaining queues, from disk where necessary, and finish the pop."""
        try:
            while not self._read_resident(run):
                await self._read_step(run)
        except DamagedRecordError as error:
            if not run.popped:
                text = f"{error}; {DAMAGE_REMEDY}"
                return refusal_answer(run.request.command, ResponseCode.SYSTEM_ERROR, text)
        except BaseException:
            self._unlock_all(run)
            raise
        return self._finish(run)

    def _read_resident(self, run: PopRun) -> bool:
        """Read the queues that are in memory; return False before the first one that is not."""
        while True:
            while run.at < len(run.steps):
                if not self._take_step(run, run.steps[run.at]):
                    run.was_cold = True
                    return False
                run.at += 1
            if run.popped or not run.was_cold:
                return True
            run.restart()  # messages may have arrived while the disk was read

    def _take_step(self, run: PopRun, step: PopStep) -> bool:
        """Read one queue; return False if it is not in memory."""
        queue = step.queue
        if run.room <= 0 and step.is_extra:
            return True
        if self._starts.is_at_end(queue):
            return (
                True  # at half the cost of what follows: a topic may have a thousand empty queues
            )
        is_locked = queue in self.locked or self._writer.has_too_many(queue)
        if is_locked or run.room <= 0:
            backlog = self._backlog(run, queue)
            run.rest += backlog
            if backlog and not is_locked:
                run.readable.append(queue)
            return True
        offset = self._starts.begin(queue, run.header.init_mode)
        if run.header.order and self._is_blocked(run, queue):
            return True
        read = self._resident(run, queue, offset)
        if read is not None and read.is_wrong_offset:
            offset = self._correct(queue, offset, read)
            read = self._resident(run, queue, offset)
        if read is None:
            return False
        self._take(run, step, offset, read)
        return True

    def _resident(self, run: PopRun, queue: PopQueue, offset: int) -> QueueRead | None:
        """Read a queue; return None if it is not in memory."""
        place = ReadPlace(queue.topic, queue.queue_id, offset)
        return self._reads.read_resident(place, run.room, run.permitted.filter)

    async def _read_step(self, run: PopRun) -> None:
        """Read the next queue from disk, locked meanwhile.

        Raises:
            DamagedRecordError, CorruptRecordError, OSError: as `PopReads.read`.
        """
        step = run.steps[run.at]
        queue = step.queue
        offset = self._starts.begin(queue, run.header.init_mode)
        self.locked.add(queue)
        try:
            place = ReadPlace(queue.topic, queue.queue_id, offset)
            read = await self._reads.read(place, run.room, run.permitted.filter)
        finally:
            self._unlock(run, queue)
        if read.is_wrong_offset:
            self._correct(queue, offset, read)  # it is read again
        else:
            self._take(run, step, offset, read)
            run.at += 1

    def _correct(self, queue: PopQueue, offset: int, read: QueueRead) -> int:
        """Move the group's offset, which is outside the queue, to where messages begin."""
        log.warning(
            "pop.offset_corrected topic=%s group=%s queue_id=%d from=%d to=%d",
            queue.topic, queue.group, queue.queue_id, offset, read.next_offset,
        )  # fmt: skip
        self._offsets.commit(queue.group, queue.topic, queue.queue_id, read.next_offset)
        return read.next_offset

    def _take(self, run: PopRun, step: PopStep, offset: int, read: QueueRead) -> None:
        """Add what was found in one queue, and lock the queue if these are messages."""
        queue = step.queue
        text = start_text(*queue, offset)
        if text in run.starts:  # another pop reads it: see `PopTimes`
            run.readable.append(queue)
            return
        if step.is_retry and read.offsets:
            read = without_other_groups(read, queue.group)
        left = read.max_offset - read.next_offset
        run.rest += left
        if read.offsets:
            self.locked.add(queue)
            run.popped.append(Popped(queue, offset, read, step.is_retry))
            run.starts.add(text)
            run.count += len(read.offsets)
        elif read.next_offset > offset:
            self._writer.skip(queue, read.next_offset)
            if left > 0:
                run.readable.append(queue)

    def _backlog(self, run: PopRun, queue: PopQueue) -> int:
        """Return the number of messages after the group's offset in a queue that is not read."""
        offset = self._starts.peek(queue, run.header.init_mode)
        return max(0, self._reader.max_offset(queue.topic, queue.queue_id) - offset)

    # Store and answer

    def _finish(self, run: PopRun) -> RemotingCommand | None:
        """Store the checkpoints of what was found; hold the pop if it found nothing."""
        if not run.popped:
            return self._hold(run)
        context = self._context
        if run.header.order:
            context.later.answer(run.request, partial(self._finish_ordered, run))
            return None
        now_ms = context.clock.now_ms()
        pop_time_ms = self._starts.times.take(run.starts, now_ms)
        checkpoints = [self._checkpoint(run, popped, pop_time_ms) for popped in run.popped]
        added = [
            NewCheckpoint(checkpoint, popped.read.next_offset)
            for checkpoint, popped in zip(checkpoints, run.popped, strict=True)
        ]
        try:
            self._writer.put(added, run.revive_queue, partial(self._stored, run, checkpoints))
        except BaseException:
            self._unlock_all(run)
            raise
        return None

    async def _finish_ordered(self, run: PopRun) -> RemotingCommand:
        """Make the order infos durable, and return the answer."""
        pop_time_ms = self._context.clock.now_ms()
        try:
            counts_text = self._ordered.add(run, pop_time_ms)
            await self._ordered.table.save()
            for popped in run.popped:
                self._count(popped)
            return self._found(run, pop_time_ms, counts_text)
        finally:
            self._unlock_all(run)

    def _is_blocked(self, run: PopRun, queue: PopQueue) -> bool:
        header = run.header
        return self._ordered.block(queue, header.attempt_id, header.invisible_time) is not None

    def _checkpoint(self, run: PopRun, popped: Popped, pop_time_ms: int) -> PopCheckpoint:
        topic, group, queue_id = popped.queue
        name = self._context.config.broker_name
        return PopCheckpoint(
            CheckpointKey(topic, group, queue_id, popped.offset, pop_time_ms, name),
            popped.read.offsets,
            run.header.invisible_time,
            log_end=self._context.store.writer.appended_position,
        )

    def _stored(self, run: PopRun, checkpoints: Sequence[PopCheckpoint], result: PutResult) -> None:
        """Commit the offsets and answer, when the checkpoints are stored or refused."""
        try:
            if result.status is PutStatus.OK:
                self._answer(run, checkpoints)
            else:
                text = f"the checkpoint was not stored: {result.status.name}: {result.reason}"
                command = run.request.command
                run.request.reply(refusal_answer(command, CODES[result.status], text))
        except Exception as error:  # noqa: BLE001 - it becomes the answer, and is logged there
            reply_error(run.request, error)
        finally:
            self._unlock_all(run)
        self._wake_next(run)

    def _answer(self, run: PopRun, checkpoints: Sequence[PopCheckpoint]) -> None:
        """Commit the offsets, and send the messages or make them visible again."""
        for popped in run.popped:
            self._count(popped)
        request = run.request
        if request.connection.is_open and not request.is_oneway:
            request.reply(self._found(run, checkpoints[0].key.pop_time_ms))
        else:
            self._release(checkpoints, run.revive_queue)

    def _found(
        self, run: PopRun, pop_time_ms: int, counts_text: str | None = None
    ) -> RemotingCommand:
        config = self._config.current
        body = body_of(
            run,
            pop_time_ms,
            config.broker_name,
            keeps_retry_topic=config.pop.pop_response_return_actual_retry_topic,
        )
        return found_answer(run, pop_time_ms, body, counts_text)

    def _count(self, popped: Popped) -> None:
        topic, group, queue_id = popped.queue
        count, size = len(popped.read.offsets), len(popped.read.body)
        self._context.stats.on_get(group, topic, queue_id, count, size, 0)

    # Hold and wake

    def _hold(self, run: PopRun) -> RemotingCommand | None:
        """Hold a pop that found nothing; return the answer if it is not held."""
        header, now_ms = run.header, self._context.clock.now_ms()
        self._context.stats.on_miss()
        result = HoldResult.NOT_ASKED
        if header.poll_time > 0 and not run.request.is_oneway:
            pop_filter = run.permitted.filter
            run.request.command.body = b""
            # A pop of no messages waits until its time is over: if it were woken for messages, it
            # would leave them, wake itself again, and keep the event loop busy.
            queue_id = max(ALL_QUEUES, header.queue_id) if run.room > 0 else NO_QUEUE
            result = self._holds.hold(
                HandledRequest(run.request, partial(self._serve, run.request, header)),
                (header.topic, header.consumer_group, queue_id),
                header.born_time + header.poll_time - HOLD_MARGIN_MS - now_ms,
                None if pop_filter is None else ArrivalPopFilter(pop_filter, self._arrivals),
            )
        if result is HoldResult.HELD:
            if run.room > 0:
                self._wake_next(run)
            return None
        is_full = result is HoldResult.FULL
        code = ResponseCode.POLLING_FULL if is_full else ResponseCode.POLLING_TIMEOUT
        return empty_answer(run, now_ms, code)

    def _wake_next(self, run: PopRun) -> None:
        """Wake a held pop for messages that this pop left."""
        header = run.header
        for queue in run.readable:
            queue_id = ALL_QUEUES if is_retry_topic(queue.topic) else queue.queue_id
            self._holds.wake(header.topic, header.consumer_group, queue_id)

    def _unlock_all(self, run: PopRun) -> None:
        for popped in run.popped:
            self._unlock(run, popped.queue)

    def _unlock(self, run: PopRun, queue: PopQueue) -> None:
        """Free a queue, and wake a pop that found it locked."""
        self.locked.discard(queue)
        if not run.header.order and self._backlog(run, queue) > 0:
            topic = run.header.topic
            self._holds.wake(
                topic, queue.group, queue.queue_id if queue.topic == topic else ALL_QUEUES
            )
