"""Pops of a slave that acts for its master: their checkpoints and acks are stored at other brokers.

    pop       the checkpoints go to one queue of the revive topic at a master of another broker name
              (`replication/revive_relay.py`); then the group's offset moves, in the slave's table
    ack       goes to the queue of the checkpoint, which the receipt handle tells
    change    a new checkpoint, then an ack of the old one

That master revives what is not acknowledged (`foreign_revivals.py`). The offsets go back to the
slave's own master when it returns, which sends the later acks of these pops to the same queue.

The checkpoints of pops from before are in the log, and their master revives them when it returns.
Acks of them are kept in memory until it asks for them (`kept`). Such a pop may be acknowledged
twice, or be changed after it was acknowledged: only its own broker knows. Ordered pops are refused,
since nobody hands order infos back; Java's slave serves them, and the order breaks.

Source: PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor, apache/rocketmq
5.5.0, where acks of earlier pops go elsewhere too, and acknowledge nothing there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.ack_writer import AckAnswer
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint, PopTimes, start_text
from kourou.broker.popping.checkpoint_writer import CheckpointWriter, NewCheckpoint
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.revive_puts import revive_draft
from kourou.broker.replication.revive_relay import ReviveRelay, is_target
from kourou.broker.writing.put import CODES, Done, PutResult, PutStatus
from kourou.errors import RemoteError, RemoteSystemError, ServiceNotAvailableError, SystemBusyError
from kourou.model.host import Host
from kourou.model.properties import POP_LOG_END, encode_properties
from kourou.protocol.brokers import KeptAck
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.headers import (
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from kourou.protocol.popping.revive_records import (
    NO_ACK_OFFSET,
    AckRecord,
    ack_properties,
    checkpoint_properties,
    encode_ack,
    encode_checkpoint,
)
from kourou.protocol.popping.topic_names import ORDER_REVIVE_QUEUE, revive_topic
from kourou.protocol.record.encode import RecordDraft

log = logging.getLogger(__name__)

KEPT_MAX: Final = 100_000
"""Limit on the acknowledged messages that a slave keeps for its master; others are refused."""
_REFRESH_S: Final = 1.0
_LOCAL: Final = ("127.0.0.1", 0)
_NOWHERE: Final = "no master of another broker name can store the checkpoint"
_CLOSED: Final = "the broker is a slave, and does not serve pops now"
_ORDERED: Final = "the broker is a slave that acts for its master: ordered pops wait for the master"


class RelayedRecords:
    """Revive records of one broker as messages for another one."""

    def __init__(self, context: BrokerContext, relay: ReviveRelay) -> None:
        self._topic = revive_topic(context.config.cluster_name).encode()
        self._host: Host = context.store_host or _LOCAL
        self._clock = context.clock
        self.relay: Final = relay

    async def put_checkpoint(self, target: int, checkpoint: PopCheckpoint) -> PutResult:
        """Store a checkpoint at a target."""
        record = checkpoint.record()
        properties = checkpoint_properties(record) | {POP_LOG_END: str(checkpoint.log_end)}
        return await self.relay.put(target, self._draft(encode_checkpoint(record), properties))

    async def put_ack(
        self, target: int, key: CheckpointKey, offsets: Sequence[int], revive_at_ms: int
    ) -> PutResult:
        """Store an ack of messages of one checkpoint at its target."""
        is_single = len(offsets) == 1
        topic, group, queue_id, start, pop_time_ms, broker_name = key
        record = AckRecord(
            topic,
            group,
            queue_id,
            start,
            pop_time_ms,
            broker_name,
            offsets[0] if is_single else NO_ACK_OFFSET,
            None if is_single else tuple(offsets),
        )
        properties = ack_properties(record, revive_at_ms)
        return await self.relay.put(target, self._draft(encode_ack(record), properties))

    def _draft(self, body: bytes, properties: dict[str, str]) -> RecordDraft:
        text = encode_properties(properties)
        return revive_draft((self._topic, 0), body, text, self._host, self._clock.now_ms())


class EscapedCheckpoints:
    """Stores the checkpoints of a slave's pops elsewhere; used in place of `CheckpointWriter`."""

    def __init__(self, records: RelayedRecords, writer: CheckpointWriter) -> None:
        """Store nothing until `open`; `writer` moves the offsets of groups."""
        self._records = records
        self._writer = writer
        self._is_open = False
        self._target: int | None = None
        self._chosen_at_s = -_REFRESH_S
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to store."""
        self._is_open = True
        await self._choose()

    async def close(self) -> None:
        """Refuse checkpoints from now on, and return when those under way are stored."""
        self._is_open = False
        while self._tasks:
            await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """Stop like a killed process."""
        for task in self._tasks:
            task.cancel()

    def next_queue(self) -> int:
        """Return the target for the checkpoints of the next pop; 0 while there is none."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._chosen_at_s >= _REFRESH_S and self._is_open:
            self._begin(self._choose())
        return self._target or 0

    def has_too_many(self, queue: PopQueue) -> bool:  # noqa: ARG002 - others count them
        """Return False: messages in flight are not counted here."""
        return False

    def skip(self, queue: PopQueue, next_offset: int) -> None:
        """Move the group's offset behind messages that are not delivered to it."""
        if self._is_open:
            self._writer.commit(queue, next_offset)

    def put(self, added: Sequence[NewCheckpoint], target: int, done: Done) -> None:
        """Store the checkpoints of one pop; as `CheckpointWriter.put`."""
        if not self._is_open or not is_target(target):
            reason = _NOWHERE if self._is_open else _CLOSED
            done(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason))
            return
        self._begin(self._put(added, target, done))

    async def _put(self, added: Sequence[NewCheckpoint], target: int, done: Done) -> None:
        puts = [self._records.put_checkpoint(target, one.checkpoint) for one in added]
        results = await asyncio.gather(*puts)
        failed = next((one for one in results if one.status is not PutStatus.OK), None)
        if failed is None:
            for one in added:
                self._writer.commit(one.queue, one.next_offset)
            done(PutResult(PutStatus.OK))
            return
        done(failed)
        await self._choose()
        for one, result in zip(added, results, strict=True):
            if result.status is PutStatus.OK:  # else their messages would come twice
                key, at_ms = one.checkpoint.key, one.checkpoint.revive_at_ms
                await self._records.put_ack(target, key, one.checkpoint.offsets, at_ms)

    async def _choose(self) -> None:
        self._chosen_at_s = asyncio.get_running_loop().time()
        self._target = await self._records.relay.choose()

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name="escaped pop")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class ElsewhereAcks:
    """Serves acks and changes of pops whose checkpoints are at other brokers, or of the master."""

    def __init__(self, context: BrokerContext, records: RelayedRecords, times: PopTimes) -> None:
        """Store by `records`; a slave keeps acks of its master's pops, and changes them too.

        Args:
            context: the broker's state and services.
            records: stores checkpoints and acks.
            times: gives the times of changes.
        """
        self._writer = context.store.writer
        self._reader = context.store.reader
        self._clock = context.clock
        self._name = context.config.broker_name
        self._records = records
        self._times = times
        rules = context.config.replication
        self._is_slave = rules.is_slave
        self._may_be_acted_for = rules.enable_slave_acting_master
        self._kept: dict[tuple[CheckpointKey, int, int], set[int]] = {}
        self._kept_count = 0
        self._kept_until = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def takes(self, revive_queue: int) -> bool:
        """Return whether acks and changes of a receipt handle are served here.

        Raises:
            ServiceNotAvailableError: the pop was an ordered one, and the broker is a slave.
        """
        self.check_unordered(is_ordered=revive_queue == ORDER_REVIVE_QUEUE)
        return self._is_slave or (self._may_be_acted_for and is_target(revive_queue))

    def check_unordered(self, *, is_ordered: bool) -> None:
        """Refuse a request of ordered consumption at a slave.

        Raises:
            ServiceNotAvailableError: it is one.
        """
        if is_ordered and self._is_slave:
            raise ServiceNotAvailableError(ResponseCode.SERVICE_NOT_AVAILABLE, _ORDERED)

    def ack(
        self, key: CheckpointKey, offsets: Sequence[int], place: tuple[int, int], answer: AckAnswer
    ) -> None:
        """Acknowledge messages of one checkpoint; `place` and `answer` as for `AckWriter.add`."""
        if key.broker_name != self._name:
            return  # there is no such checkpoint
        answer.outstanding += 1
        if is_target(place[0]):
            coroutine = self._relay(key, offsets, place, answer)
            task = asyncio.get_running_loop().create_task(coroutine, name="escaped ack")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            answer.settle(self._keep(key, offsets, place))

    async def change(
        self, header: ChangeInvisibleTimeRequestHeader, old: CheckpointKey, place: tuple[int, int]
    ) -> ChangeInvisibleTimeResponseHeader:
        """Store a checkpoint of the message alone, and then an ack of the old one.

        Raises:
            RemoteError: one of them could not be stored.
        """
        topic, group, queue_id, _, _, broker_name = old
        start = start_text(topic, group, queue_id, header.offset)
        pop_time_ms = self._times.take((start,), self._clock.now_ms())
        new = PopCheckpoint(
            CheckpointKey(topic, group, queue_id, header.offset, pop_time_ms, broker_name),
            (header.offset,),
            header.invisible_time,
            is_suspended=header.suspend,
            log_end=self._writer.appended_position,
        )
        target, revive_at_ms = place
        if not is_target(target):
            target = await self._records.relay.choose() or 0
        if broker_name == self._name:
            error = _error_of(await self._records.put_checkpoint(target, new))
            if error is None and is_target(place[0]):
                put = self._records.put_ack(target, old, (header.offset,), revive_at_ms)
                error = _error_of(await put)
            elif error is None:
                error = self._keep(old, (header.offset,), place)
            if error is not None:
                raise error
        return ChangeInvisibleTimeResponseHeader(pop_time_ms, header.invisible_time, target)

    async def _relay(
        self, key: CheckpointKey, offsets: Sequence[int], place: tuple[int, int], answer: AckAnswer
    ) -> None:
        error: RemoteError | None
        try:
            error = _error_of(await self._records.put_ack(place[0], key, offsets, place[1]))
        except Exception as failure:  # the request must be answered
            log.exception("escaped_ack.failed key=%s", key)
            error = RemoteSystemError(ResponseCode.SYSTEM_ERROR, str(failure))
        answer.settle(error)

    # Acks of the master's pops

    def _keep(
        self, key: CheckpointKey, offsets: Iterable[int], place: tuple[int, int]
    ) -> RemoteError | None:
        known = self._kept.get((key, *place), set())
        new = set(offsets) - known
        if self._kept_count + len(new) > KEPT_MAX:
            text = f"{KEPT_MAX} acknowledgements wait for the master: try again when it is back"
            return SystemBusyError(ResponseCode.SYSTEM_BUSY, text)
        self._kept[key, *place] = known | new
        self._kept_count += len(new)
        return None

    def begin_keeping(self) -> None:
        """Forget what the master has taken: it has written to its log since."""
        if self._reader.written_position > self._kept_until:
            self._kept.clear()
            self._kept_count = 0

    def end_keeping(self) -> None:
        """Note that the master returns, and will ask for the acks before it writes to its log."""
        self._kept_until = self._reader.written_position

    def kept(self) -> list[KeptAck]:
        """Return the acks that the master needs, which it may ask for again."""
        if self._reader.written_position > self._kept_until:
            return []
        return [
            KeptAck(
                key.topic,
                key.group,
                key.queue_id,
                key.start_offset,
                key.pop_time_ms,
                revive_queue,
                revive_at_ms,
                tuple(sorted(offsets)),
            )
            for (key, revive_queue, revive_at_ms), offsets in self._kept.items()
        ]


def _error_of(result: PutResult) -> RemoteError | None:
    if result.status is PutStatus.OK:
        return None
    text = f"the record was not stored: {result.status.name}: {result.reason}"
    return RemoteError(CODES[result.status], text)
