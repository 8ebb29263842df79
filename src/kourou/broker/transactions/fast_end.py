"""Fast path of commits: END_TRANSACTION for cached half messages, one-way or with an answer.

Most END_TRANSACTION requests are such commits. A request with any other property of the frame, the
half message or the transaction is left to the general path (`end_transaction.py`), which serves
every request and does not depend on this one. All commits of a loop iteration are stored together
at its end, from the bytes of their half messages: see `plain_halves.py`. Commits that do not fit
then go to the general path.

Until the end of the loop iteration an accepted commit is only noted. So the fast path of sends may
call this path for commits that come between its sends.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

import msgspec

from kourou.broker.message_type import TRANSACTION
from kourou.broker.transactions.context import TransactionContext
from kourou.broker.transactions.half_cache import CachedHalf
from kourou.broker.transactions.half_messages import HalfMessage
from kourou.broker.transactions.ledger import State
from kourou.broker.transactions.plain_halves import HALF_TOPIC_BYTES, HalfTarget, PlainHalf
from kourou.broker.transactions.verdicts import end_refusal
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import CODES, PutResult, PutStatus
from kourou.decimals import decimal_or
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.frame import encode_frame
from kourou.protocol.record.encode import encode_committed
from kourou.remoting.connection import Connection, Request
from kourou.store.message_store import AppendedRecord, MessageStore, SealedRun

log = logging.getLogger(__name__)

_PREFIX_BYTES: Final = 8
_SIZES: Final = struct.Struct(">II").unpack_from
_pack_sizes: Final = struct.Struct(">II").pack
_START: Final = b'{"code":37,'
_START_END: Final = _PREFIX_BYTES + len(_START)
_ANSWER_OPAQUE: Final = 1_717_171_717
"""Placeholder for the opaque in the sample answer that `_ANSWER` is built from."""


def _answer_frame(opaque: int, result: PutResult) -> bytes:
    """Return the answer to an end, as the general path encodes it."""
    command = RemotingCommand(RequestCode.END_TRANSACTION, opaque=opaque)
    return encode_frame(response(command, CODES[result.status], result.reason or None))


_ANSWER: Final = _answer_frame(_ANSWER_OPAQUE, PutResult(PutStatus.OK))[_PREFIX_BYTES:].replace(
    b"%d" % _ANSWER_OPAQUE, b"%d"
)
"""Header of the answer to a stored commit, as a format of the opaque."""


class _Fields(msgspec.Struct, gc=False):
    """The fields of `EndTransactionRequestHeader` that this path reads."""

    producerGroup: str  # noqa: N815 - wire names
    tranStateTableOffset: str  # noqa: N815
    commitLogOffset: str  # noqa: N815
    commitOrRollback: Literal["8"]  # noqa: N815
    fromTransactionCheck: Literal["false", "true"] = "false"  # noqa: N815


class _Header(msgspec.Struct, gc=False):
    code: Literal[37]
    extFields: _Fields  # noqa: N815
    flag: Literal[0, 2]
    opaque: Annotated[int, msgspec.Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)] = 0


_decode: Final = msgspec.json.Decoder(_Header).decode


class _Commit(NamedTuple):
    """A commit accepted in this loop iteration.

    Attributes:
        frame_bytes: size of its frame; 0 for a one-way request, which is not counted as unanswered.
    """

    connection: Connection
    half: CachedHalf
    plain: PlainHalf
    opaque: int
    frame_bytes: int

    def request(self) -> Request | None:
        """Return the request to answer; None if it is one-way."""
        if not self.frame_bytes:
            return None
        command = RemotingCommand(RequestCode.END_TRANSACTION, opaque=self.opaque)
        return Request(command, self.connection, self.frame_bytes)


class _Commits:
    """Commits that pass through the group commit together; a `Waiter`.

    Attributes:
        accepted, records: each commit, and the record of its message.
    """

    __slots__ = (
        "_began_ms",
        "_is_done",
        "_path",
        "accepted",
        "deadline_s",
        "end",
        "owner_sizes",
        "records",
        "size",
        "waits_for_sync",
    )

    # Set by `follow`; see `Waiter`.
    end: int
    size: int
    deadline_s: float
    waits_for_sync: bool
    waits_for_copies: ClassVar[bool] = True

    def __init__(self, path: FastEnd, began_ms: int) -> None:
        self.accepted: list[_Commit] = []
        self.records: list[AppendedRecord] = []
        self.owner_sizes: list[tuple[Connection, int]] = []
        self._path = path
        self._began_ms = began_ms
        self._is_done = False

    @property
    def puts(self) -> int:
        """Number of commits."""
        return len(self.records)

    def append(self, one: _Commit, run: SealedRun) -> bool:
        """Append the message of a commit.

        Return False if a queue or segment must be created first, or the topic was changed or
        deleted since.
        """
        half, plain = one.half, one.plain
        target, position = plain.target, run.position
        queue = run.queues.get(target.queue_key)
        size = half.appended.size + target.more_bytes
        if queue is None or position + size > run.limit or not self._path.is_current(target):
            return False
        offset, end = queue.next_offset, position + size
        record = encode_committed(
            half.record[0],
            HALF_TOPIC_BYTES,
            (target.topic_bytes, target.queue_id),
            plain.properties_size,
            (position, offset, run.store_at_ms, half.appended.physical_offset),
        )
        appended = AppendedRecord(
            position, offset, size, target.topic, target.queue_id, plain.code, run.store_at_ms
        )
        run.buffers += record
        run.pending.append((queue, appended))
        run.keyed.append(
            (position, end, run.store_at_ms, target.topic, plain.tags, plain.unique_id, plain.keys)
        )
        queue.next_offset = offset + 1
        run.position = end
        self.accepted.append(one)
        self.records.append(appended)
        self.owner_sizes.append((one.connection, size))
        return True

    def follow(self, commit: GroupCommit) -> None:
        """Enter the group commit; no commit may be added afterwards."""
        self.end = self.records[-1].end
        self.size = sum([size for _, size in self.owner_sizes])
        self.deadline_s = commit.deadline_s()
        self.waits_for_sync = commit.is_sync_mode
        commit.commit_appended(self)

    def stored(self) -> None:
        """Complete the transactions as committed."""
        self._complete()

    def late(self, status: PutStatus, reason: str) -> None:
        """Complete the transactions as committed: they are in the log, but late otherwise."""
        self._complete(PutResult(status, self.records, reason))

    def answer(self, result: PutResult) -> None:
        """Leave the transactions open: their messages were not stored."""
        self._complete(result)

    def _complete(self, doubt: PutResult | None = None) -> None:
        """Update the transactions and answer; `doubt` is None if all is as durable as required."""
        if self._is_done:
            return
        self._is_done = True
        try:
            if doubt is None or doubt.appended:
                self._path.on_stored(self.accepted, self.records, self._began_ms)
            else:
                self._path.on_refused(self.accepted)
        except Exception:  # the requests must be answered all the same
            log.exception("fast_end.failed commits=%d", len(self.accepted))
        self._reply(doubt)

    def _reply(self, doubt: PutResult | None) -> None:
        """Answer those that are not one-way, in one write to each connection."""
        frames: dict[Connection, list[bytes]] = {}
        for one in self.accepted:
            if not one.frame_bytes:
                continue
            one.connection.unanswered.remove(one.frame_bytes)
            if doubt is None:
                header = _ANSWER % one.opaque
                frame = _pack_sizes(len(header) + 4, len(header)) + header
            else:
                frame = _answer_frame(one.opaque, doubt)
            frames.setdefault(one.connection, []).append(frame)
        for connection, answers in frames.items():
            try:
                connection.send_now(b"".join(answers))
            except Exception:  # a failure for one producer must not affect the others
                log.exception("fast_end.reply_failed")


class FastEnd:
    """Stores commits on the fast path; a `kourou.remoting.connection.FastPath`."""

    def __init__(
        self,
        context: TransactionContext,
        store: MessageStore,
        general_path: Callable[[HalfMessage, Connection, Request | None], None],
    ) -> None:
        """Serve requests with the same outcome as `EndTransactionHandler`.

        Args:
            context: give the state of transactions; commits update it.
            store: the messages are appended there before the group commit writes them.
            general_path: commits an open transaction on the general path, and answers.
        """
        self._halves = context.halves
        self._ledger = context.ledger
        self._op_writer = context.op_writer
        self._counts = context.counts
        self._topics = context.topics.by_name
        self._commit = context.commit
        self._stats = context.stats
        self._clock = context.clock
        self._recovered = context.recovered
        self._writer = store.writer
        self._general_path = general_path
        self._accepted: list[_Commit] = []
        self.in_flight: set[int] = set()
        """Queue offsets of the half records whose commits are being stored."""

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        """Accept the leading commits; return the position of the first other frame."""
        at = start
        if not self._recovered.is_set():
            return start
        while end - at > _START_END and buffer[at + _PREFIX_BYTES : at + _START_END] == _START:
            frame_bytes, header_bytes = _SIZES(buffer, at)
            frame_end = at + 4 + frame_bytes
            if header_bytes != frame_bytes - 4 or frame_end > end:
                break  # it has a body or another serialization, or is incomplete
            if not self._accept(connection, buffer[at + _PREFIX_BYTES : frame_end], frame_bytes):
                break
            at = frame_end
        return at

    def _accept(self, connection: Connection, header: bytearray, frame_bytes: int) -> bool:
        """Accept a commit; False if the general path must serve it."""
        try:
            header_fields = _decode(header)
        except ValueError:  # includes msgspec's errors
            return False
        fields = header_fields.extFields
        physical_offset = decimal_or(fields.commitLogOffset, -1)
        offset = decimal_or(fields.tranStateTableOffset, -1)
        if physical_offset < 0 or offset < 0:
            return False
        half = self._halves.get(physical_offset)
        if half is None or half.plain is None:
            return False
        if (
            end_refusal(
                (fields.producerGroup, offset), (half.plain.group, half.appended.queue_offset)
            )
            or not (header_fields.flag or connection.unanswered.has_room(frame_bytes, 1))
            or not self._ledger.begin_single(offset)
        ):
            return False
        self._halves.pop(physical_offset)
        if header_fields.flag:
            frame_bytes = 0
        else:
            connection.unanswered.add_all(frame_bytes, 1)
        self.in_flight.add(offset)
        if not self._accepted:
            self._commit.call_before_write(self.append_commits)
        self._accepted.append(
            _Commit(connection, half, half.plain, header_fields.opaque, frame_bytes)
        )
        return True

    def is_current(self, target: HalfTarget) -> bool:
        """Return whether the topic config is unchanged since the half message was stored."""
        return self._topics.get(target.topic) is target.config

    def append_commits(self) -> None:
        """Append the messages of all accepted commits."""
        remaining, self._accepted = self._accepted, []
        if not remaining:
            return
        now_ms = self._clock.now_ms()
        size = sum([one.half.appended.size for one in remaining])  # an upper bound
        if self._commit.has_room_for_any(size, len(remaining)):
            run = self._writer.begin_run(now_ms)
            if run is not None:
                commits = _Commits(self, now_ms)
                remaining = [one for one in remaining if not commits.append(one, run)]
                self._writer.end_run(run)
                if commits.accepted:
                    commits.follow(self._commit)
        for one in remaining:
            self._reopen(one)
            self._general_path(one.half.read(), one.connection, one.request())

    def on_stored(
        self, commits: Sequence[_Commit], records: Sequence[AppendedRecord], began_ms: int
    ) -> None:
        """Complete these transactions as committed."""
        took_ms = self._clock.now_ms() - began_ms
        settle, on_put = self._ledger.settle, self._stats.on_put
        ended = [one.half.appended.queue_offset for one in commits]
        for offset, stored in zip(ended, records, strict=True):
            settle(offset, State.COMMITTED)
            on_put(stored.topic, stored.queue_id, TRANSACTION, 1, stored.size, took_ms)
        self.in_flight.difference_update(ended)
        self._op_writer.add(ended)
        for topic, count in Counter([stored.topic for stored in records]).items():
            self._counts.ended(topic, State.COMMITTED, count, open_before=count)

    def on_refused(self, commits: Sequence[_Commit]) -> None:
        """Leave the transactions open; checks will be sent to their producers."""
        for one in commits:
            self._reopen(one)
            self._halves.add(one.half)
            self._stats.on_put_failed()

    def _reopen(self, one: _Commit) -> None:
        offset = one.half.appended.queue_offset
        self.in_flight.discard(offset)
        self._ledger.settle(offset, State.OPEN)
