"""Pop consumption of one broker: its components, connected to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.ack_writer import AckWriter
from kourou.broker.popping.acks import AckHandlers
from kourou.broker.popping.buffer import PoppedQueue
from kourou.broker.popping.buffer_scans import BufferScans
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint, is_relayed
from kourou.broker.popping.checkpoint_writer import CheckpointWriter
from kourou.broker.popping.due_marks import DueMarks
from kourou.broker.popping.escaped_pops import (
    ElsewhereAcks,
    EscapedCheckpoints,
    RelayedRecords,
)
from kourou.broker.popping.fast_acks import FastAcks
from kourou.broker.popping.fast_pops import FastPopParts, FastPops
from kourou.broker.popping.foreign_revivals import ForeignRevivals
from kourou.broker.popping.in_flight import DueCopies, InFlight
from kourou.broker.popping.in_flight_recovery import InFlightRecovery, read_revive_record
from kourou.broker.popping.invisible import InvisibleMessages
from kourou.broker.popping.java_revivals import find_java_revivals
from kourou.broker.popping.notifications import NotificationHandlers
from kourou.broker.popping.ordered import OrderedPops
from kourou.broker.popping.peek import PeekHandler
from kourou.broker.popping.pop import PopHandler
from kourou.broker.popping.pop_counts import PopCounts
from kourou.broker.popping.pop_holds import HoldLimits, PopHolds
from kourou.broker.popping.pop_reads import PopReads
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.pop_starts import PopStarts
from kourou.broker.popping.popped_filters import PoppedFilters
from kourou.broker.popping.popped_offsets import complete_copied, complete_popped
from kourou.broker.popping.revive import ReviveParts, Revives
from kourou.broker.popping.revive_log import REVIVE_PREFIX, ReviveLog
from kourou.broker.popping.revive_store import ReviveStore
from kourou.broker.pulling.long_polling import Arrived
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.replication.foreign_messages import ForeignMessages
from kourou.broker.replication.revive_relay import ReviveRelay
from kourou.broker.tables import Tables
from kourou.broker.timer.timers import Timers
from kourou.errors import MalformedBodyError
from kourou.protocol.brokers import KeptAck
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.popping.headers import PopMessageRequestHeader
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.remoting.connection import Connection, Request
from kourou.remoting.dispatch import Handler
from kourou.store.timer.timer_record import TimerRecord


class Popping:
    """The components that serve pops.

    Attributes:
        holds: the held pops.
        notification_holds: the held notifications.
        ordered: the order infos of ordered pops.
        recovery: makes the checkpoints from before the start known.
        scans: the merge buffer, and what stores its checkpoints.
        revives: the loops that make messages visible again.
        in_flight: the checkpoints whose messages are invisible.
        invisible: the same, with those of ordered pops, for administrators.
        filters: the filters with which clients popped lately.
        counts: counts since the start, for the metrics.
        fast_pops: serves plain pops and acks on the fast path.
        elsewhere: serves acks and changes of pops whose checkpoints are at other brokers.
        escaped: stores the checkpoints of a slave's pops there.
    """

    def __init__(
        self,
        context: BrokerContext,
        tables: Tables,
        reads: VerifiedReads,
        timers: Timers,
        foreign: ForeignMessages,
        relay: ReviveRelay,
    ) -> None:
        self._context = context
        self._offsets = tables.offsets
        self.in_flight: Final = InFlight(context.config.broker_name)
        self.invisible: Final = InvisibleMessages(
            self.in_flight, tables.order_infos.infos, context.clock
        )
        self.filters: Final = PoppedFilters(self._has_differences)
        self.counts: Final = PopCounts()
        self.holds: Final = PopHolds(self._hold_limits, _retry_topics)
        self.notification_holds: Final = PopHolds(
            self._hold_limits, _retry_topics, wakes_latest=True
        )
        self.ordered: Final = OrderedPops(
            context, tables.order_infos, tables.offsets, (self.holds, self.notification_holds)
        )
        revive_log = ReviveLog(context, timers)
        self.scans: Final = BufferScans(
            context, tables.offsets, revive_log.checkpoint_draft, self.counts
        )
        self._copies = DueCopies(self.in_flight)
        timers.skips_due = self._skips_copy
        timers.needless.topic = revive_log.topic
        self._marks = DueMarks(self.in_flight, self._copies, timers.needless)
        writer = AckWriter(
            context, revive_log, self.in_flight, self.scans, self.counts, self._marks
        )
        parts = self._build_parts(tables, reads, timers, writer, revive_log, foreign)
        self.revives: Final = Revives(parts, revive_log)
        self.recovery: Final = InFlightRecovery(
            context,
            timers,
            self.in_flight,
            self._copies,
            writer,
            self.revives,
        )
        self._recovery_task: asyncio.Task[None] | None = None
        self._kept_acks: Sequence[KeptAck] = ()
        self._relayed = RelayedRecords(context, relay)
        self._acks = writer
        self._handlers = self._build_handlers(revive_log, writer, reads)

    def _build_parts(
        self,
        tables: Tables,
        reads: VerifiedReads,
        timers: Timers,
        writer: AckWriter,
        revive_log: ReviveLog,
        foreign: ForeignMessages,
    ) -> ReviveParts:
        store = ReviveStore(
            self._context, tables.offsets, reads, revive_log, self.in_flight, self.counts
        )
        return ReviveParts(
            self._context,
            tables.offsets,
            timers,
            self.in_flight,
            writer,
            store,
            ForeignRevivals(store, foreign),
            self.counts,
            lambda: self.recovery.is_complete,
        )

    def _build_handlers(
        self, revive_log: ReviveLog, writer: AckWriter, reads: VerifiedReads
    ) -> dict[int, Handler]:
        context = self._context
        starts = PopStarts(context, self._offsets, self.scans.buffer, self._clear_queue)
        pop_reads = PopReads(context.store, reads, context.live_config)
        notifications = NotificationHandlers(
            context,
            starts=starts,
            holds=self.notification_holds,
            held_pops=self.holds,
            is_blocked=self._is_blocked,
        )
        self.elsewhere = ElsewhereAcks(context, self._relayed, starts.times)
        acks = self._build_acks(revive_log, writer, starts)
        checkpoints = CheckpointWriter(
            context,
            self._offsets,
            revive_log,
            self.in_flight,
            self.scans,
            self.counts,
            self._marks,
        )
        pops = self._build_pops(revive_log, checkpoints, starts, pop_reads)
        self.fast_pops = self._build_fast_path(revive_log, writer, checkpoints, pops, starts)
        return {
            RequestCode.POP_MESSAGE: pops.on_pop_message,
            RequestCode.PEEK_MESSAGE: PeekHandler(
                context, starts=starts, reads=pop_reads
            ).on_peek_message,
            RequestCode.NOTIFICATION: notifications.on_notification,
            RequestCode.POLLING_INFO: notifications.on_polling_info,
            RequestCode.ACK_MESSAGE: acks.on_ack_message,
            RequestCode.BATCH_ACK_MESSAGE: acks.on_batch_ack_message,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: acks.on_change_invisible_time,
        }

    def _build_pops(
        self,
        revive_log: ReviveLog,
        checkpoints: CheckpointWriter,
        starts: PopStarts,
        pop_reads: PopReads,
    ) -> PopHandler:
        self.escaped = EscapedCheckpoints(self._relayed, checkpoints)
        is_slave = self._context.config.replication.is_slave
        return PopHandler(
            self._context,
            starts=starts,
            offsets=self._offsets,
            reads=pop_reads,
            writer=self.escaped if is_slave else checkpoints,
            next_queue=self.escaped.next_queue if is_slave else revive_log.next_queue,
            ordered=self.ordered,
            holds=self.holds,
            release=_leave if is_slave else self.revives.release,
            filters=self.filters,
        )

    def _build_acks(
        self, revive_log: ReviveLog, writer: AckWriter, starts: PopStarts
    ) -> AckHandlers:
        return AckHandlers(
            self._context,
            writer=writer,
            revive_log=revive_log,
            in_flight=self.in_flight,
            scans=self.scans,
            recovery=self.recovery,
            ordered=self.ordered,
            starts=starts,
            counts=self.counts,
            marks=self._marks,
            elsewhere=self.elsewhere,
        )

    def _build_fast_path(
        self,
        revive_log: ReviveLog,
        writer: AckWriter,
        checkpoints: CheckpointWriter,
        pops: PopHandler,
        starts: PopStarts,
    ) -> FastPops:
        context = self._context
        fast_acks = FastAcks(
            context,
            writer=writer,
            in_flight=self.in_flight,
            revive_log=revive_log,
            buffer_is_empty=self._buffer_is_empty,
        )
        parts = FastPopParts(
            pops,
            starts,
            self._offsets,
            self._buffer_is_empty,
            revive_log,
            checkpoints,
            self.holds,
            self.revives.release,
            self.filters,
        )
        return FastPops(context, parts, fast_acks)

    def handlers(self) -> dict[int, Handler]:
        """Return request code -> handler."""
        return self._handlers

    def slave_handlers(self) -> dict[int, Handler]:
        """Return request code -> handler of a slave, which serves them while it acts."""
        serve = self._handlers[RequestCode.POP_MESSAGE]

        def pop(request: Request) -> RemotingCommand | None:
            header = request.command.header(PopMessageRequestHeader)
            self.elsewhere.check_unordered(is_ordered=bool(header.order))
            return serve(request)

        return self._handlers | {RequestCode.POP_MESSAGE: pop}

    async def recover(self) -> None:
        """Complete the offsets of groups after a kill; to be called before pops are served.

        Revived messages are looked up after a clean stop too, if the revive offsets are behind.

        Raises:
            OSError: the log cannot be read.
        """
        context, offsets = self._context, self._offsets
        positions = offsets.loaded_positions
        offsets.revived_position = lambda: self.revives.revived_position
        # After a clean stop, a revived message may not be counted in the revive offsets yet.
        has_uncounted = positions is not None and positions[1] < positions[0]
        if not context.is_as_left or has_uncounted:
            await self._complete_offsets(positions)
        if positions is None:
            await offsets.save_position()  # for the next start

    async def _complete_offsets(self, positions: tuple[int, int] | None) -> None:
        """Find the pops and revivals that the saved offsets lack.

        Args:
            positions: see `ConsumerOffsets.loaded_positions`.
        """
        context, reader = self._context, self._context.store.reader
        found = await complete_popped(context, self._offsets, positions)
        revived = await context.offload(
            find_java_revivals,
            reader,
            self.revives.next_offsets,
            context.config.broker_name,
            is_java_last=positions is None or bool(found.by_java),
        )
        revived_from = reader.written_position if positions is None else positions[1]
        self.revives.note_revived(found.revived | revived, revived_from)
        self.recovery.note_read_from()
        await self.recovery.note_early_acks()

    async def begin_acting(self) -> None:
        """Serve pops at a slave that acts for its master.

        The pops of the master's last seconds, whose offsets were not copied, are in the log.

        Raises:
            OSError: the log cannot be read.
        """
        self.elsewhere.begin_keeping()
        await complete_copied(self._context, self._offsets)
        await self.escaped.open()

    async def end_acting(self) -> None:
        """Serve pops no more; return when the offsets of those under way are committed."""
        await self.escaped.close()
        self.elsewhere.end_keeping()

    def take_kept_acks(self, kept: Sequence[KeptAck]) -> None:
        """Take acks of this broker's pops that a slave has accepted; to be called before `start`.

        Their checkpoints may be due already.
        """
        self._kept_acks = (*self._kept_acks, *kept)
        acked: dict[CheckpointKey, set[int]] = {}
        for ack in kept:
            acked.setdefault(self._key_of(ack), set()).update(ack.offsets)
        self.revives.note_early_acked(acked)

    def _key_of(self, ack: KeptAck) -> CheckpointKey:
        return CheckpointKey(
            ack.topic,
            ack.group,
            ack.queue_id,
            ack.start_offset,
            ack.pop_time,
            self._context.config.broker_name,
        )

    def start(self) -> None:
        """Begin to revive messages."""
        for ack in self._kept_acks:
            place = (ack.revive_queue, ack.revive_at)
            self._acks.add_unanswered(self._key_of(ack), ack.offsets, place)
        self._kept_acks = ()
        self.ordered.start()
        self.revives.start()
        self._recovery_task = asyncio.get_running_loop().create_task(self.recovery.run())

    async def stop(self) -> None:
        """Serve no more held requests, and revive no more messages."""
        self.close()
        if self._recovery_task is not None:
            self._recovery_task.cancel()
        self.recovery.end()  # requests that wait continue
        await self.scans.stop()
        await self.revives.stop()
        if self.revives.is_behind:
            self._offsets.changed()  # the next start needs the position of the revived messages

    def abandon(self) -> None:
        """Stop at once, like a killed process."""
        self.close()
        if self._recovery_task is not None:
            self._recovery_task.cancel()
        self.scans.close()
        self.escaped.abandon()
        self.revives.abandon()

    def on_arrivals(self, arrivals: Sequence[Arrived]) -> None:
        """Wake held requests and revives; called once per loop iteration."""
        self.holds.on_arrivals(arrivals)
        self.notification_holds.on_arrivals(arrivals)
        self.revives.on_arrivals(arrivals)

    def on_connection_closed(self, connection: Connection) -> None:
        """Drop the held requests of a closed connection."""
        for holds in (self.holds, self.notification_holds):
            holds.on_connection_closed(connection)

    def on_offset_reset(self, group: str, topic: str, queue_id: int) -> None:
        """End the block of a queue whose offset was reset, and wake a request for it."""
        self._clear_queue(PopQueue(topic, group, queue_id))
        for holds in (self.holds, self.notification_holds):
            holds.wake(topic, group, queue_id)

    def on_topic_changed(self, topic: str) -> None:
        """Serve the held requests for a topic that was deleted or has other queues."""
        if self._context.topics.get(topic) is None:
            self.in_flight.forget(topic=topic)
            self._marks.forget_acks()
            self.ordered.remove_topic(topic)
            self.scans.buffer.remove_topic(topic)
            self.counts.remove_topic(topic)
            self.filters.remove_topic(topic)
        for holds in (self.holds, self.notification_holds):
            holds.serve_topic(topic)

    def on_group_changed(self, group: str) -> None:
        """Serve the held requests of a group that was deleted or changed."""
        if self._context.groups.get(group) is None:
            self.in_flight.forget(group=group)
            self._marks.forget_acks()
            self.ordered.remove_group(group)
            self.scans.buffer.remove_group(group)
            self.counts.remove_group(group)
            self.filters.remove_group(group)
        for holds in (self.holds, self.notification_holds):
            holds.serve_group(group)

    def close(self) -> None:
        """Serve no more held requests."""
        self.ordered.close()
        for holds in (self.holds, self.notification_holds):
            holds.close()

    def _hold_limits(self) -> HoldLimits:
        config = self._context.live_config.current.pop
        return HoldLimits(config.pop_polling_size, config.max_pop_polling_size)

    def _clear_queue(self, queue: PopQueue) -> None:
        """End the block of a queue that is reset, and commit nothing for earlier pops of it."""
        self.ordered.clear(queue)
        self.scans.buffer.clear_queue(PoppedQueue(*queue))

    def _skips_copy(self, timer: TimerRecord) -> bool:
        """Return whether a due record of the revive topic is of no use: all is acknowledged."""
        if not self._copies.is_complete or not timer.topic.startswith(REVIVE_PREFIX):
            return False
        if is_relayed(timer.properties):
            return False  # of another broker: not in flight here
        try:
            record = read_revive_record(timer, self._context.config.broker_name)
        except MalformedBodyError:
            return False  # the revive loop logs it
        if isinstance(record, PopCheckpoint):
            is_needed = self._copies.needs_checkpoint(record.key, record.revive_at_ms)
            if is_needed:
                self._marks.forget(record.key)
            return not is_needed
        return not self._copies.needs_ack(record.key, timer.due_at_ms)

    def _buffer_is_empty(self) -> bool:
        return self.scans.buffer.is_empty

    def _has_differences(self, group: str) -> bool:
        """Return whether the heartbeats of a group's members differ, which is logged there."""
        live = self._context.clients.consumer_group(group)
        return live is not None and not live.member_subscriptions.is_consistent

    def _is_blocked(self, queue: PopQueue, attempt_id: str | None) -> bool:
        return self.ordered.block(queue, attempt_id) is not None


def _leave(checkpoints: Sequence[PopCheckpoint], revive_queue: int) -> None:
    """Leave messages invisible that no client has received: another broker revives them."""


def _retry_topics(topic: str, group: str) -> tuple[str, str]:
    return retry_topic_v1(group, topic), retry_topic_v2(group, topic)
