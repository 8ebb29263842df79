"""Puts of checkpoints and acks: all of one loop iteration are appended together, at its end.

Their records are encoded from templates (`revive_templates.py`) straight into a `SealedRun`, and
share one waiter in the group commit. What does not fit into the run, or near a limit, is put one by
one, as drafts, with the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.revive_templates import ReviveText
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import Done, PutResult, PutStatus
from kourou.errors import InvalidMessageError
from kourou.model.host import Host, pack_address
from kourou.model.properties import PROPERTIES_SIZE_MAX, UNIQ_KEY
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.hashing import tags_code
from kourou.protocol.record.encode import RecordDraft, encode_plain, plain_size
from kourou.protocol.record.layout import PAIR_END, SEAL_BYTES, topic_field
from kourou.store.message_store import AppendedRecord

log = logging.getLogger(__name__)

_TOPIC: Final = TIMER_TOPIC.encode()
_TOPIC_FIELD: Final = topic_field(_TOPIC)
_QUEUE: Final = (_TOPIC, 0)
_QUEUE_FIELD: Final = (_TOPIC_FIELD, 0)
_ID_AT: Final = len(UNIQ_KEY) + 1
"""Where the unique id begins in the properties; it is the first one."""
_IPV4_BYTES: Final = 4
_TOO_LARGE: Final = 1 << 62
_NO_OWNERS: Final[Sequence[tuple[Hashable, int]]] = ()

Puts = list[tuple[Sequence[ReviveText], Done]]
OnStored = Callable[[Sequence[AppendedRecord], Sequence[ReviveText]], None]
"""Called with stored records of the timer topic, and what they hold."""


class _Waiter:
    """Puts that pass through the group commit together; a `Waiter`."""

    __slots__ = (
        "_is_done",
        "_on_stored",
        "deadline_s",
        "end",
        "puts",
        "puts_of",
        "records",
        "size",
        "waits_for_sync",
    )

    waits_for_copies: ClassVar[bool] = False

    def __init__(self, commit: GroupCommit, on_stored: OnStored) -> None:
        self.puts_of: Puts = []
        self.records: list[AppendedRecord] = []
        self.deadline_s = commit.deadline_s()
        self.waits_for_sync = commit.is_sync_mode
        self.size = self.puts = self.end = 0
        self._on_stored = on_stored
        self._is_done = False

    @property
    def owner_sizes(self) -> Sequence[tuple[Hashable, int]]:
        """The broker itself stores the records: no owner."""
        return _NO_OWNERS

    def stored(self) -> None:
        """Report all puts as stored."""
        if self._is_done:
            return
        texts = [text for texts, _ in self.puts_of for text in texts]
        self._on_stored(self.records, texts)
        self._end(PutStatus.OK)

    def late(self, status: PutStatus, reason: str) -> None:
        """Leave out the report of a late sync: `stored` or `answer` follows when it ends."""

    def answer(self, result: PutResult) -> None:
        """Report all puts as refused."""
        self._end(result.status, result.reason)

    def _end(self, status: PutStatus, reason: str = "") -> None:
        if self._is_done:
            return
        self._is_done = True
        is_appended = status is PutStatus.OK
        at = 0
        for texts, done in self.puts_of:
            records = self.records[at : at + len(texts)] if is_appended else ()
            at += len(texts)
            try:
                done(PutResult(status, records, reason))
            except Exception:  # must not prevent the answers to other clients
                log.exception("put.reply_failed")


class RevivePuts:
    """Stores checkpoints and acks in the timer topic."""

    def __init__(self, context: BrokerContext, host: Host, on_stored: OnStored) -> None:
        """Store records of `host`.

        Args:
            context: the broker's state and services.
            host: born and store host of the records.
            on_stored: called with the records of each iteration before their puts are reported.
        """
        self._commit = context.commit
        self._writer = context.store.writer
        self._clock = context.clock
        self._host = host
        self._address = _ipv4(host[0])
        self._on_stored = on_stored
        self._added: Puts = []

    def add(self, texts: Sequence[ReviveText], done: Done) -> None:
        """Store these records at the end of the loop iteration, all or none; call `done` once.

        `done` is called in a later iteration, or at the end of this one if the put is refused. If
        the sync takes too long, it is called when that ends, as by `GroupCommit.put` with
        `answers_late` false.
        """
        if not self._added:
            self._commit.call_before_write(self._append)
        self._added.append((texts, done))

    def _append(self) -> None:
        """Append what was added in this loop iteration."""
        added, self._added = self._added, []
        left = self._append_run(added)
        now_ms = self._clock.now_ms()
        for texts, done in added[len(added) - left :] if left else ():
            drafts = [
                revive_draft(_QUEUE, text.body, text.properties, self._host, now_ms)
                for text in texts
            ]
            self._commit.put(drafts, now_ms, done, answers_late=False)

    def _append_run(self, added: Puts) -> int:
        """Append leading puts in one run; return the number of those that are left."""
        sizes = [_size(texts) for texts, _ in added]
        if not self._address or not self._commit.has_room_for_any(sum(sizes), len(added)):
            return len(added)
        now_ms = self._clock.now_ms()
        run = self._writer.begin_run(now_ms)
        queue = None if run is None else run.queues.get(_QUEUE)
        if run is None or queue is None:
            return len(added)
        waiter = _Waiter(self._commit, self._on_stored)
        host = self._address, self._host[1]
        hosts = (now_ms, *host, run.store_at_ms, *host)
        position, store_at_ms, offset = run.position, run.store_at_ms, queue.next_offset
        buffers, pending, records = run.buffers, run.pending, waiter.records
        keyed = run.keyed
        number = 0
        for put, put_size in zip(added, sizes, strict=True):
            if position + put_size > run.limit:
                break
            for body, properties, tags, _ in put[0]:
                record, seal = encode_plain(
                    _QUEUE_FIELD, body, properties, hosts, (position, offset)
                )
                size = len(record) + len(seal)
                appended = AppendedRecord(
                    position, offset, size, TIMER_TOPIC, 0, tags_code(tags), store_at_ms
                )
                buffers += (record, seal)
                pending.append((queue, appended))
                records.append(appended)
                unique_id = properties[_ID_AT : properties.index(PAIR_END)].decode()
                keyed.append(
                    (position, appended.end, store_at_ms, TIMER_TOPIC, tags, unique_id, "")
                )
                offset += 1
                position += size
                queue.next_offset = offset
                run.position = position
            waiter.size += put_size
            number += 1
        self._writer.end_run(run)
        if number:
            waiter.puts, waiter.end, waiter.puts_of = number, position, added[:number]
            self._commit.commit_appended(waiter)
        return len(added) - number


def revive_draft(
    place: tuple[bytes, int], body: bytes, properties: bytes, host: Host, now_ms: int
) -> RecordDraft:
    """Return the message of a checkpoint or an ack; `place` is the topic and queue it is put in."""
    topic, queue_id = place
    return RecordDraft(
        topic=topic,
        queue_id=queue_id,
        flag=0,
        sys_flag=0,
        born_at_ms=now_ms,
        born_host=host,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
    )


def _size(texts: Sequence[ReviveText]) -> int:
    """Return the size of these records; more than a segment if one of them is not valid."""
    size = 0
    for body, properties, _, _ in texts:
        if len(properties) > PROPERTIES_SIZE_MAX - SEAL_BYTES:
            return _TOO_LARGE
        size += plain_size(_TOPIC_FIELD, body, properties)
    return size


def _ipv4(host: str) -> bytes:
    """Return the bytes of an IPv4 address; empty for another one."""
    try:
        address = pack_address(host)
    except InvalidMessageError:
        return b""
    return address if len(address) == _IPV4_BYTES else b""
