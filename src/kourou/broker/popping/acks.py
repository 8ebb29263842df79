"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

    acknowledge   an ack record for the checkpoint of the message; answered when it is stored
    change        a new checkpoint for the message, and an ack of the old one, in one put

A handle whose message is acknowledged, changed or revived already, or that was never issued, is
answered with success, and nothing is written: a further checkpoint would bring the message back.
Java writes it. A record that cannot be stored is answered with an error; Java answers 0.

Handles of ordered pops (revive queue 999) concern the order info instead (`order_table.py`).

Checks, in Java's order, each with Java's response code:

    16   the group or the topic is reserved for the broker; not in Java
    17   the topic does not exist
    13   the queue does not exist
    208  the offset is outside the queue; an ack may name the queue's end, a change may not
    1    the receipt handle is malformed
    29   change: the timer cannot hold a checkpoint for so long; not in Java

A batch ack skips queues that do not exist, and offsets outside them.

Source: AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.ack_writer import AckAnswer, AckWriter
from kourou.broker.popping.buffer_scans import BufferScans
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint, start_text
from kourou.broker.popping.due_marks import DueMarks
from kourou.broker.popping.escaped_pops import ElsewhereAcks
from kourou.broker.popping.in_flight import InFlight
from kourou.broker.popping.in_flight_recovery import InFlightRecovery
from kourou.broker.popping.notifications import JAVA_REMARK
from kourou.broker.popping.ordered import OrderedPops
from kourou.broker.popping.pop_counts import ACK, CHECKPOINT, PopCounts
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.pop_starts import PopStarts
from kourou.broker.popping.pop_verdicts import (
    judge_invisible_time,
    missing_topic_text,
    wrong_queue_text,
)
from kourou.broker.popping.revive_log import ReviveLog
from kourou.broker.reserved import check_not_reserved
from kourou.broker.writing.put import CODES, PutResult, PutStatus
from kourou.errors import RemoteError, RemoteSystemError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.json_records import decode_record
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessages,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from kourou.protocol.popping.receipt_handles import ReceiptHandle, decode_receipt_handle
from kourou.protocol.popping.revive_records import AckRecord
from kourou.protocol.popping.topic_names import ORDER_REVIVE_QUEUE, real_topic
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import reply_error

UNKNOWN_SPAN_MAX: Final = 10_000
"""Limit on the offsets of a batch ack whose checkpoint is not known."""
_UNSET: Final = ChangeInvisibleTimeResponseHeader(0, 0, 0)


class AckHandlers:
    """Serves acks and changes of popped messages."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        writer: AckWriter,
        revive_log: ReviveLog,
        in_flight: InFlight,
        scans: BufferScans,
        recovery: InFlightRecovery,
        ordered: OrderedPops,
        starts: PopStarts,
        counts: PopCounts,
        marks: DueMarks,
        elsewhere: ElsewhereAcks,
    ) -> None:
        """Serve requests for the checkpoints of `in_flight`, and others by `elsewhere`."""
        self._elsewhere = elsewhere
        self._counts = counts
        self._marks = marks
        self._context = context
        self._reader = context.store.reader
        self._writer = writer
        self._revive_log = revive_log
        self._in_flight = in_flight
        self._scans = scans
        self._recovery = recovery
        self._ordered = ordered
        self._starts = starts

    # Acknowledge

    def on_ack_message(self, request: Request) -> RemotingCommand | None:
        """Acknowledge one message.

        Raises:
            NoPermissionError: the group or the topic is reserved.
            MalformedHeaderError: the receipt handle is invalid.
        """
        header = request.command.header(AckMessageRequestHeader)
        check_not_reserved(header.consumer_group, header.topic)
        refusal = self._refusal(request, header, is_end_allowed=True)
        if refusal is not None:
            return refusal
        handle = decode_receipt_handle(header.extra_info)
        key = _key(header, handle)
        if self._elsewhere.takes(handle.revive_queue):
            self._count_acks(header.consumer_group, header.topic, 1)
            answer = AckAnswer(partial(_reply, request))
            place = handle.revive_queue, handle.revive_at_ms
            self._elsewhere.ack(key, (header.offset,), place, answer)
            answer.settle()
            return None
        if handle.is_ordered:
            queue = PopQueue(header.topic, header.consumer_group, header.queue_id)
            self._ordered.ack(queue, header.offset, handle.pop_time_ms)
            self._count_acks(header.consumer_group, header.topic, 1)
            self._context.later.answer(request, partial(self._saved, request))
            return None
        known = self._place(key, header.offset, (handle.revive_queue, handle.revive_at_ms))
        if known is None:
            self._count_acks(header.consumer_group, header.topic, 1)
            return response(request.command)
        answer = AckAnswer(partial(_reply, request))
        self._writer.add(key, (header.offset,), known, answer)
        answer.settle()
        return None

    def _place(
        self, key: CheckpointKey, offset: int, issued: tuple[int, int]
    ) -> tuple[int, int] | None:
        """Return the revive queue and time for an ack; None if nothing is left to acknowledge.

        `issued`: the queue and the time of the receipt handle. They count as long as the
        checkpoints in flight at the start are not recovered.
        """
        revive_at_ms = self._in_flight.revive_at_ms(key)
        if revive_at_ms is None:
            return issued if self._may_be_valid(key, issued) else None
        if not self._in_flight.is_in_flight(key, offset) or not self._is_queue(issued[0]):
            return None
        return issued[0], revive_at_ms

    def _may_be_valid(self, key: CheckpointKey, issued: tuple[int, int]) -> bool:
        """Return whether a handle that is not known may be one from before the start.

        The broker name of the handle becomes part of the ack's properties, so it must be a name.
        """
        if self._recovery.is_complete or not key.broker_name.isprintable():
            return False
        revive_queue, revive_at_ms = issued
        longest_ms = self._context.live_config.current.timer.timer_max_delay_sec * 1000
        is_possible = revive_at_ms - self._context.clock.now_ms() <= longest_ms
        return is_possible and self._is_queue(revive_queue)

    def _is_queue(self, revive_queue: int) -> bool:
        return 0 <= revive_queue < self._revive_log.queue_count

    def on_batch_ack_message(self, request: Request) -> RemotingCommand | None:
        """Acknowledge messages of several pops; answered when all are stored.

        Raises:
            MalformedBodyError: the body is invalid.
            NoPermissionError: a group or a topic is reserved.
        """
        body = request.command.body
        batch = decode_record(BatchAckMessages, body) if body else None
        if batch is None or not batch.acks:
            text = "the batch has no acknowledgement: send at least one"
            return response(request.command, ResponseCode.NO_MESSAGE, text)
        for ack in batch.acks:
            check_not_reserved(ack.consumer_group, ack.topic)
            self._elsewhere.takes(ack.revive_queue_id)  # refuses before any of them is stored
        answer = AckAnswer(partial(_reply, request))
        for ack in batch.acks:
            self._ack_batch(ack, batch.broker_name, answer)
        request.command.body = b""
        if any(ack.revive_queue_id == ORDER_REVIVE_QUEUE for ack in batch.acks):
            self._context.later.answer(request, partial(self._save_and_settle, answer))
        else:
            answer.settle()
        return None

    async def _saved(self, request: Request) -> RemotingCommand:
        """Return the answer to an ack when the order infos are durable."""
        await self._ordered.table.save()
        return response(request.command)

    async def _save_and_settle(self, answer: AckAnswer) -> None:
        """Make the order infos durable, and settle the answer to a batch."""
        try:
            await self._ordered.table.save()
        except OSError as error:
            text = f"the order infos were not stored: {error}"
            answer.settle(RemoteSystemError(ResponseCode.SYSTEM_ERROR, text))
        else:
            answer.settle()

    def _ack_batch(self, ack: BatchAck, broker_name: str | None, answer: AckAnswer) -> None:
        topic = real_topic(ack.topic, ack.consumer_group, ack.retry)
        low = self._reader.min_offset(topic, ack.queue_id)
        high = self._reader.max_offset(topic, ack.queue_id)
        if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
            self._ack_ordered(ack, topic, range(low, high + 1))
            return
        key = CheckpointKey(
            topic,
            ack.consumer_group,
            ack.queue_id,
            ack.start_offset,
            ack.pop_time,
            broker_name or self._context.config.broker_name,
        )
        revive_at_ms = self._in_flight.revive_at_ms(key)
        place = (ack.revive_queue_id, ack.pop_time + ack.invisible_time)
        is_elsewhere = self._elsewhere.takes(ack.revive_queue_id)
        if revive_at_ms is not None and self._is_queue(ack.revive_queue_id):
            place = (ack.revive_queue_id, revive_at_ms)
            offsets = [one for one in self._in_flight.unacked(key) if low <= one <= high]
        elif is_elsewhere or self._may_be_valid(key, place):
            first = max(low, ack.start_offset)
            offsets = list(range(first, min(high + 1, first + UNKNOWN_SPAN_MAX)))
        else:
            return
        bits = int.from_bytes(ack.bits, "little")
        offsets = [one for one in offsets if bits >> (one - ack.start_offset) & 1]
        if offsets and is_elsewhere:
            self._count_acks(ack.consumer_group, topic, len(offsets))
            self._elsewhere.ack(key, offsets, place, answer)
        elif offsets:
            self._writer.add(key, offsets, place, answer)

    def _ack_ordered(self, ack: BatchAck, topic: str, offsets: range) -> None:
        """Acknowledge messages of an ordered pop, as far as they are within the queue.

        Raises:
            MessageIllegalError: the last pop of the queue did not return one of them.
        """
        queue = PopQueue(topic, ack.consumer_group, ack.queue_id)
        bits = int.from_bytes(ack.bits, "little")
        first = max(ack.start_offset, offsets.start)
        for offset in range(first, min(offsets.stop, ack.start_offset + bits.bit_length())):
            if bits >> (offset - ack.start_offset) & 1:
                self._ordered.ack(queue, offset, ack.pop_time)
                self._count_acks(ack.consumer_group, topic, 1)

    def _count_acks(self, group: str, topic: str, count: int) -> None:
        stats = self._context.stats
        stats.count("GROUP_ACK_NUMS", f"{topic}@{group}", count)
        stats.count("BROKER_ACK_NUMS", self._context.config.cluster_name, count)

    def _count_change(self, old: CheckpointKey, changed: CheckpointKey, status: PutStatus) -> None:
        """Count a change as Java does: as an ack and a checkpoint."""
        self._counts.on_put(CHECKPOINT, changed, status)
        self._counts.on_put(ACK, old, status)
        if status is PutStatus.OK:
            stats = self._context.stats
            self._count_acks(old.group, old.topic, 1)
            stats.count("GROUP_CK_NUMS", f"{changed.topic}@{changed.group}")
            stats.count("BROKER_CK_NUMS", self._context.config.cluster_name)

    # Change

    def on_change_invisible_time(self, request: Request) -> RemotingCommand | None:
        """Change the time at which one message becomes visible again.

        Raises as `on_ack_message`.
        """
        command = request.command
        header = command.header(ChangeInvisibleTimeRequestHeader)
        check_not_reserved(header.consumer_group, header.topic)
        refusal = self._refusal(request, header, is_end_allowed=False)
        if refusal is not None:
            refusal.ext_fields = response(command, header=_UNSET).ext_fields
            return refusal
        too_long = judge_invisible_time(header.invisible_time, self._context.live_config.current)
        if too_long is not None:
            return response(command, too_long.code, too_long.text, _UNSET)
        handle = decode_receipt_handle(header.extra_info)
        if self._elsewhere.takes(handle.revive_queue):
            self._context.later.answer(
                request, partial(self._change_elsewhere, request, header, handle)
            )
            return None
        if handle.is_ordered:
            return self._change_ordered(request, header, handle)
        if not self._recovery.is_complete and not self._in_flight.is_live(_key(header, handle)):
            self._context.later.answer(
                request, partial(self._change_recovered, request, header, handle)
            )
            return None
        return self._change_known(request, header, handle)

    async def _change_recovered(
        self,
        request: Request,
        header: ChangeInvisibleTimeRequestHeader,
        handle: ReceiptHandle,
    ) -> RemotingCommand | None:
        """Change a message when all checkpoints from before the start are known."""
        await self._recovery.wait()
        return self._change_known(request, header, handle)

    async def _change_elsewhere(
        self,
        request: Request,
        header: ChangeInvisibleTimeRequestHeader,
        handle: ReceiptHandle,
    ) -> RemotingCommand:
        """Change a message whose checkpoint is not in the log of this broker."""
        place, command = (handle.revive_queue, handle.revive_at_ms), request.command
        try:
            changed = await self._elsewhere.change(header, _key(header, handle), place)
        except RemoteError as error:
            return response(command, error.code, error.remark, _UNSET)
        return response(command, ResponseCode.SUCCESS, JAVA_REMARK, changed)

    def _change_known(
        self,
        request: Request,
        header: ChangeInvisibleTimeRequestHeader,
        handle: ReceiptHandle,
    ) -> RemotingCommand | None:
        key = _key(header, handle)
        revive_at_ms = self._in_flight.revive_at_ms(key)
        is_left = self._in_flight.is_in_flight(key, header.offset)
        if revive_at_ms is None or not is_left or not self._is_queue(handle.revive_queue):
            now_ms = self._context.clock.now_ms()
            return _changed(request.command, now_ms, header.invisible_time, handle.revive_queue)
        self._change(request, header, key, (handle.revive_queue, revive_at_ms))
        return None

    def _change_ordered(
        self,
        request: Request,
        header: ChangeInvisibleTimeRequestHeader,
        handle: ReceiptHandle,
    ) -> RemotingCommand | None:
        """Change a message of an ordered pop; answered when the order infos are durable."""
        queue = PopQueue(header.topic, header.consumer_group, header.queue_id)
        if self._ordered.is_before_committed(queue, header.offset):
            return response(request.command, ResponseCode.SUCCESS, JAVA_REMARK, _UNSET)
        pop_time_ms = handle.pop_time_ms
        visible_at_ms = self._ordered.change(
            queue, header.offset, pop_time_ms, header.invisible_time
        )
        answer = _changed(
            request.command, pop_time_ms, visible_at_ms - pop_time_ms, handle.revive_queue
        )

        async def serve() -> RemotingCommand:
            await self._ordered.table.save()
            return answer

        self._context.later.answer(request, serve)
        return None

    def _change(
        self,
        request: Request,
        header: ChangeInvisibleTimeRequestHeader,
        old: CheckpointKey,
        place: tuple[int, int],
    ) -> None:
        """Store a checkpoint of the message alone, and an ack of the old checkpoint.

        Raises:
            MessageIllegalError, RemoteSystemError: the timer refuses the checkpoint.
        """
        now_ms = self._context.clock.now_ms()
        revive_queue, revive_at_ms = place
        topic, group, queue_id, start_offset, old_pop_time_ms, broker_name = old
        start = start_text(topic, group, queue_id, header.offset)
        pop_time_ms = self._starts.times.take((start,), now_ms)
        changed = PopCheckpoint(
            CheckpointKey(topic, group, queue_id, header.offset, pop_time_ms, broker_name),
            (header.offset,),
            header.invisible_time,
            is_suspended=header.suspend,
            log_end=self._context.store.writer.appended_position,
        )
        ack = AckRecord(
            topic, group, queue_id, start_offset, old_pop_time_ms, broker_name, header.offset
        )
        drafts = [
            self._revive_log.checkpoint_draft(changed, revive_queue, now_ms),
            self._revive_log.ack_draft(ack, revive_queue, revive_at_ms, now_ms),
        ]

        def done(result: PutResult) -> None:
            command = request.command
            self._count_change(old, changed.key, result.status)
            if result.status is not PutStatus.OK:
                self._in_flight.change_failed(old, header.offset, changed.key)
                text = f"the checkpoint was not stored: {result.status.name}: {result.reason}"
                request.reply(response(command, CODES[result.status], text, _UNSET))
                return
            self._in_flight.change_stored(old, header.offset)
            self._scans.ack(old, (header.offset,))
            request.reply(_changed(command, pop_time_ms, header.invisible_time, revive_queue))

        self._marks.forget(old)
        self._in_flight.change(old, header.offset, changed)
        self._context.commit.put(drafts, now_ms, done, answers_late=False)

    # Checks

    def _refusal(
        self,
        request: Request,
        header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader,
        *,
        is_end_allowed: bool,
    ) -> RemotingCommand | None:
        """Return the answer to a request for a message that cannot exist; None if it can."""
        command, queue_id, offset = request.command, header.queue_id, header.offset
        topic = self._context.topics.get(header.topic)
        if topic is None:
            text = missing_topic_text(header.topic)
            return response(command, ResponseCode.TOPIC_NOT_EXIST, text)
        if not 0 <= queue_id < topic.read_queue_nums:
            text = wrong_queue_text(queue_id, topic, request.remote_address)
            return response(command, ResponseCode.MESSAGE_ILLEGAL, text)
        low = self._reader.min_offset(topic.name, queue_id)
        high = self._reader.max_offset(topic.name, queue_id)
        if low <= offset < high or (is_end_allowed and offset == high):
            return None
        text = (
            f"offset is illegal, key:{topic.name}@{queue_id}, commit:{offset}, store:{low}~{high}"
        )
        return response(command, ResponseCode.NO_MESSAGE, text)


def _key(
    header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, handle: ReceiptHandle
) -> CheckpointKey:
    return CheckpointKey(
        header.topic,
        header.consumer_group,
        header.queue_id,
        handle.start_offset,
        handle.pop_time_ms,
        handle.broker_name,
    )


def _changed(
    command: RemotingCommand, pop_time_ms: int, invisible_ms: int, revive_queue: int
) -> RemotingCommand:
    header = ChangeInvisibleTimeResponseHeader(pop_time_ms, invisible_ms, revive_queue)
    return response(command, ResponseCode.SUCCESS, JAVA_REMARK, header)


def _reply(request: Request, error: RemoteError | None) -> None:
    if error is None:
        request.reply(response(request.command))
    else:
        reply_error(request, error)
