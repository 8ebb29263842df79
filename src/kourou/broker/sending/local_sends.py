"""Fast path of sends from this process: those of the gRPC proxy in local mode, without frames.

The proxy has read the message from a request of its own. A frame of SEND_MESSAGE_V2, its header in
JSON and the answer to it would only be written and read again, a quarter of the CPU of such a send.
What is stored, counted and answered is the same; `tests/broker/sending/test_local_sends.py`
compares the two.

Messages are appended together at the end of the loop iteration, as those of small frames are
(`fast_send.py`). One that the fast path of frames would leave to the general path, and all of them
near a limit on unsynced records, are declined: their sender sends frames instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kourou.broker.config import BrokerConfig
from kourou.broker.context import BrokerContext
from kourou.broker.message_type import NORMAL
from kourou.broker.sending.plain_sends import CachedPeer, PlainSends, SendCache
from kourou.broker.sending.plain_shapes import SendShape, Shapes, send_shape
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.record.encode import SEALED_BYTES, encode_plain
from kourou.protocol.record.layout import SEAL_BYTES, TOPIC_SIZE_V1_MAX
from kourou.protocol.sending import SendMessageResponseHeader
from kourou.store.message_store import AppendedRecord, SealedRun
from kourou.store.queues.consumequeue import ConsumeQueue

log = logging.getLogger(__name__)

_new_tuple: Final = tuple.__new__  # half the time of the class itself


class LocalMessage(Protocol):
    """The parts of a message that differ from one to the next.

    Attributes:
        message_id: the unique id: letters and digits.
        keys: separated by blanks, as in the properties; empty without any.
        born_at_ms: epoch milliseconds.
        body: not compressed.
    """

    @property
    def message_id(self) -> bytes: ...

    @property
    def keys(self) -> bytes: ...

    @property
    def born_at_ms(self) -> int: ...

    @property
    def body(self) -> bytes: ...


class LocalSend(Protocol):
    """A send of this process. Exactly one of its functions is called."""

    def on_stored(self, queue_offset: int) -> None:
        """Handle that the message is as durable as the broker's flush mode promises."""

    def on_answer(self, answer: RemotingCommand) -> None:
        """Handle the answer to a message that is not, or not in time; see `SendAnswers`."""

    def on_declined(self) -> None:
        """Send the message by a frame: nothing of it is stored."""


_Tell = Callable[[LocalSend, LocalMessage, AppendedRecord], None]
_Opened = tuple[tuple[bytes, int], ConsumeQueue]
"""Topic field and queue id for records, and the queue, which has room for messages."""


class LocalQueue:
    """A queue of the broker as the destination of local sends; created by `LocalSends.queue`."""

    __slots__ = ("_opened", "_sends", "_turn", "queue_id", "topic")

    def __init__(self, sends: LocalSends, queue: MessageQueue) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self._sends = sends
        self._turn = 0
        self._opened: _Opened | None = None

    def put(self, send: LocalSend, message: LocalMessage, properties: bytes, constant: str) -> None:
        """Store a message at the end of this iteration of the loop. Takes 2.2 us for 1 KB in all.

        Args:
            send: learns the result.
            message: what differs from message to message.
            properties: the property text, which ends with its last pair.
            constant: the same without those of `VARYING`.
        """
        self._sends.put((send, self, message, properties, constant))

    def opened(self, turn: int, run: SealedRun, cache: SendCache) -> _Opened | None:
        """Return the queue for a message; None if it needs the general path.

        What is found for the first message of a turn, which is a number above 0, is for all of it.
        """
        if turn != self._turn:
            self._turn, self._opened = turn, self._open(run, cache)
        return self._opened

    def _open(self, run: SealedRun, cache: SendCache) -> _Opened | None:
        topic = cache.valid_topic(self.topic)
        known = None if topic is None else topic.queue(str(self.queue_id))
        if topic is None or known is None:
            return None
        queue_id, key = known
        queue = run.queues.get(key)
        return None if queue is None else ((topic.topic_bytes, queue_id), queue)


_Waiting = tuple[LocalSend, LocalQueue, LocalMessage, bytes, str]
"""The queue, and the arguments of `LocalQueue.put`."""


class _Accepted(PlainSends):
    """Local sends that pass through the group commit together.

    Attributes:
        sends: each send of `records`, in the same order, and its message.
        hosts: those of the records, with the store time, as `encode_plain` takes them.
    """

    __slots__ = ("_peer", "hosts", "sends")

    def __init__(self, path: LocalSends, peer: CachedPeer, run: SealedRun, began_ms: int) -> None:
        super().__init__(path, began_ms)
        self.sends: list[tuple[LocalSend, LocalMessage]] = []
        self.hosts = (
            peer.born_address, peer.born_port, run.store_at_ms, peer.store_address, peer.store_port,
        )  # fmt: skip
        self._peer = peer

    def stored(self) -> None:
        self._end_each(_tell_stored, self._count)

    def late(self, status: PutStatus, reason: str) -> None:
        self._end_each(partial(self._tell_late, status, reason), self._count)

    def answer(self, result: PutResult) -> None:
        self._end_each(partial(self._tell_refused, result), self._count_failed)

    def _end_each(self, tell: _Tell, count: Callable[[], None]) -> None:
        """Answer each send, and count them; only the first call has an effect."""
        if self._is_done:
            return
        self._end(b"".join, count)  # no connection has sent them
        for (send, message), record in zip(self.sends, self.records, strict=True):
            try:
                tell(send, message, record)
            except Exception:  # a failure for one sender must not affect the others
                log.exception("put.reply_failed")

    def _tell_late(
        self,
        status: PutStatus,
        reason: str,
        send: LocalSend,
        message: LocalMessage,
        record: AppendedRecord,
    ) -> None:
        header = SendMessageResponseHeader(
            f"{self._peer.id_prefix}{record.physical_offset:016X}",
            record.queue_id,
            record.queue_offset,
            message.message_id.decode(),
        )
        answers, waits = self._path.answers, self.waits_for_sync
        send.on_answer(answers.stored(_request(), status, reason, header, waits=waits))

    def _tell_refused(
        self, result: PutResult, send: LocalSend, _: LocalMessage, __: AppendedRecord
    ) -> None:
        send.on_answer(self._path.answers.refused(_request(), result.status, result.reason))


class LocalSends:
    """Stores messages of this process.

    Attributes:
        answers: builds the answers.
        stats, clock: those of the context.
        declined: number of messages that were left to frames.
    """

    def __init__(self, context: BrokerContext, cache: SendCache, peer: CachedPeer) -> None:
        """Create the path of one sender.

        Args:
            context: the broker's state and services.
            cache: of this path alone.
            peer: the sender, as a connection of its own would have it.
        """
        self._live = context.live_config
        self._writer = context.store.writer
        self._commit = context.commit
        self.stats = context.stats
        self.clock = context.clock
        self._peer = peer
        self._cache = cache
        self._shapes: Shapes[str, SendShape] = Shapes(partial(send_shape, takes_halves=False))
        self._waiting: list[_Waiting] = []
        self._turn = 0
        self.declined = 0
        self._reset(context.live_config.current)

    def _reset(self, config: BrokerConfig) -> None:
        """Drop all cached data and use other options."""
        self._cache.reset(config)
        self.answers = self._cache.answers
        self._body_max = config.max_message_size_bytes
        # Bytes of a record beyond its body and the properties of its message, at most.
        self._more_bytes = SEALED_BYTES + TOPIC_SIZE_V1_MAX + 1 + len(self._cache.suffix)

    @property
    def copies(self) -> int:
        """See `GroupCommit.copies`."""
        return self._commit.copies

    def queue(self, queue: MessageQueue) -> LocalQueue:
        """Return a queue of this broker as a destination."""
        return LocalQueue(self, queue)

    def put(self, one: _Waiting) -> None:
        """See `LocalQueue.put`."""
        if not self._waiting:
            self._commit.call_before_write(self._serve)
        self._waiting.append(one)

    def _serve(self) -> None:
        """Append what waits, and decline the rest of it."""
        waiting, self._waiting = self._waiting, []
        puts = len(waiting)
        size = sum([len(one[2].body) + len(one[3]) for one in waiting]) + puts * self._more_bytes
        declined = waiting
        try:
            if self._commit.has_room(self, size, puts):
                declined = self._append(waiting)
        except Exception:  # the senders must be answered, and the event loop must continue
            log.exception("local_sends.failed messages=%d", puts)
            self._fail(waiting)
            return
        self.declined += len(declined)
        for send, *_ in declined:
            try:
                send.on_declined()
            except Exception:  # a failure for one sender must not affect the others
                log.exception("local_send.failed")

    def _fail(self, waiting: list[_Waiting]) -> None:
        """Answer that the messages are not stored; some of them may be."""
        for send, *_ in waiting:
            failed = self.answers.build(_request(), ResponseCode.SYSTEM_ERROR, "internal error")
            try:
                send.on_answer(failed)
            except Exception:  # a failure for one sender must not affect the others
                log.exception("local_send.failed")

    def _append(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """Append the messages; return those that are declined.

        So are those behind a declined one of the same queue, so that they keep their order.
        """
        self._turn += 1
        config = self._live.current
        if self._cache.is_outdated(config):
            self._reset(config)
        now_ms = self.clock.now_ms()
        run = self._writer.begin_run(now_ms)
        if run is None:
            return waiting
        accepted, began_at = _Accepted(self, self._peer, run, now_ms), run.position
        declined: list[_Waiting] = []
        declined_queues: set[LocalQueue] = set()
        for one in waiting:
            try:
                is_behind = bool(declined_queues) and one[1] in declined_queues
                is_accepted = not is_behind and self._append_one(one, run, accepted)
            except Exception:  # a failure for one message must not affect the others
                log.exception("local_send.failed queue=%s", one[1])
                is_accepted = False
            if not is_accepted:
                declined_queues.add(one[1])
                declined.append(one)
        if puts := len(accepted.records):
            self._writer.end_run(run)
            size = run.position - began_at - SEAL_BYTES * puts
            accepted.owner_sizes = [(self, size)]
            accepted.follow(self._commit, run.position, size, puts)
        return declined

    def _append_one(self, waiting: _Waiting, run: SealedRun, accepted: _Accepted) -> bool:
        """Append one message; return False if it is not accepted. If it fails, nothing is done."""
        send, destination, message, properties, constant = waiting
        opened = destination.opened(self._turn, run, self._cache)
        shape = self._shapes[constant]
        body, properties = message.body, properties + self._cache.suffix
        if (
            opened is None
            or shape is None
            or not 0 < len(body) <= self._body_max
            or len(properties) + SEAL_BYTES > SENT_PROPERTIES_SIZE_MAX
        ):
            return False
        place, queue = opened
        position, queue_offset, store_at_ms = run.position, queue.next_offset, run.store_at_ms
        parts = encode_plain(
            place, body, properties, (message.born_at_ms, *accepted.hosts), (position, queue_offset)
        )
        end = position + len(parts[0]) + SEAL_BYTES
        if end > run.limit:
            return False
        code, kind, tags, _ = shape
        name = destination.topic
        appended = _new_tuple(
            AppendedRecord,
            (position, queue_offset, end - position, name, place[1], code, store_at_ms, 1),
        )
        unique_id, keys = message.message_id.decode(), message.keys.decode()
        # No step below can fail.
        run.buffers += parts
        run.pending.append((queue, appended))
        queue.next_offset = queue_offset + 1
        run.position = end
        run.keyed.append((position, end, store_at_ms, name, tags, unique_id, keys))
        if kind is not NORMAL:
            accepted.note_kind(kind)
        accepted.records.append(appended)
        accepted.sends.append((send, message))
        return True


def _request() -> RemotingCommand:
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2)


def _tell_stored(send: LocalSend, _: LocalMessage, record: AppendedRecord) -> None:
    send.on_stored(record.queue_offset)
