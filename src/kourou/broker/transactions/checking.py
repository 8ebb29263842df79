"""Asks producers what became of half messages about which nobody said anything.

A round looks at the open half messages from the first one on, in pieces. One whose producer is to
be asked is stored again first, with one more check, so that neither a crash nor a producer that
does not answer makes it be asked for ever; then one of the producers of its group that are
connected gets CHECK_TRANSACTION_STATE (39), one-way, in turn. Its answer is END_TRANSACTION.

As in Java, a check counts although no producer of the group is connected: after
`transaction_check_max` rounds the message lies in TRANS_CHECK_MAX_TIME_TOPIC, from where
RESUME_CHECK_HALF_MESSAGE (323) takes it back.

Source: TransactionalMessageServiceImpl.java, AbstractTransactionalMessageCheckListener.java,
DefaultTransactionalMessageCheckListener.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kourou.broker.clients import Clients, Peer
from kourou.broker.consuming.retry_topics import SavedTopics
from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.checked_reads import CheckedReads
from kourou.broker.transactions.books import Books
from kourou.broker.transactions.check_rules import CheckLimits, Rounds, Verdict, verdict_on
from kourou.broker.transactions.half_messages import (
    HALF_QUEUE,
    HalfMessage,
    given_up_draft,
    read_half,
    renewed_draft,
)
from kourou.broker.transactions.ledger import State
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import CorruptRecordError, KourouError, MalformedMessageError
from kourou.model.msgid import encode_offset_msg_id
from kourou.model.topic import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.headers_transaction import CheckTransactionStateRequestHeader
from kourou.protocol.message_layout import RecordDraft, encode_record
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import Appended, Asked, MessageStore

log = logging.getLogger(__name__)

ROUND_MS: Final = 60_000
"""How long a round goes on; what it leaves is the next one's."""
READ_MESSAGES_MAX: Final = 32
"""Half messages that are read, and stored again, together."""
READ_BYTES_MAX: Final = 4 * 1024 * 1024
MOVED_MAX: Final = 200_000
"""Records of open transactions that were stored again; a round asks about no more before some of
them have ended: they stay in memory."""
IN_THE_WAY: Final = 10_000
"""Half messages behind one with a long immunity time, from which on that is stored again: what
comes after the first open one must be read at the next start."""


class Checking:
    """The rounds of one broker."""

    def __init__(
        self,
        books: Books,
        *,
        config: LiveConfig,
        topics: SavedTopics,
        store: MessageStore,
        reads: CheckedReads,
        clients: Clients,
    ) -> None:
        """Ask about what is open.

        Args:
            books: say what that is, and are told what was stored again, and what was given up.
            config: the times of the rules.
            topics: get the topic of what is given up.
            store: says how far the half queue goes.
            reads: read the half messages.
            clients: who is asked.
        """
        self._books = books
        self._config = config
        self._topics = topics
        self._store = store
        self._reads = reads
        self._clients = clients
        self._rounds = Rounds()
        self._rounds.begin(steady_ms(), store.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE))
        self._turn = 0
        self._is_stuck = False

    async def run(self) -> None:
        """Do one round. What cannot be read or stored now ends it, and the next one tries again."""
        until_ms = steady_ms() + ROUND_MS
        offset = self._books.ledger.head
        end = self._store.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE)
        self._rounds.begin(steady_ms(), end)
        while steady_ms() < until_ms and self._books.ledger.moved_count < MOVED_MAX:
            offset = self._books.ledger.next_open(offset, end)
            if offset >= end:
                return
            found = await self._read(offset)
            if found is None:
                return
            if not await self._check_all(found[0], end):
                return
            offset = max(offset + 1, found[1])

    async def _read(self, offset: int) -> tuple[list[tuple[int, bytes]], int] | None:
        """Return records with their queue offsets, and where to read on; None if one is damaged."""
        asked = Asked(offset, READ_MESSAGES_MAX, READ_BYTES_MAX, None)
        try:
            found = await self._reads.read(TRANS_HALF_TOPIC, HALF_QUEUE, asked)
        except CorruptRecordError as error:
            if not self._is_stuck:
                self._is_stuck = True
                log.error(  # noqa: TRY400 - the place says it all
                    "transaction_check.blocked queue_offset=%d reason=%s", offset, error
                )
            return None
        self._is_stuck = False
        offsets = [wanted.queue_offset for wanted in found.plan.wanted]
        return list(zip(offsets, found.records(), strict=True)), found.plan.next_offset

    async def _check_all(self, records: list[tuple[int, bytes]], end: int) -> bool:
        """Do what the rules say with each record; return whether the round goes on."""
        puts = []
        is_over = False
        for offset, record in records:
            if self._books.ledger.state(offset) is not State.OPEN:
                continue
            try:
                half = read_half(record)
            except MalformedMessageError as error:
                self._pass_over(offset, error)
                continue
            verdict = verdict_on(half, self._age_ms(half), end, self._limits())
            if verdict is Verdict.END_ROUND:
                is_over = True
                break
            if verdict is Verdict.GIVE_UP:
                puts.append(await self._give_up(half))
            elif verdict is Verdict.ASK:
                puts.append(self._ask_again(half))
            elif end - offset > IN_THE_WAY:
                puts.append(self._move(half, renewed_draft(half, None), None))
        are_stored = [await put for put in puts]
        return all(are_stored) and not is_over

    def _age_ms(self, half: HalfMessage) -> int:
        """Return for how long the half message waits, whatever the clocks say."""
        told_ms = self._books.age_clock.now_ms() - min(half.draft.born_at_ms, half.store_at_ms)
        return self._rounds.age_ms(half, told_ms, steady_ms())

    def _limits(self) -> CheckLimits:
        config = self._config.now
        kept_ms = config.store.retention.file_reserved_hours * 3_600_000
        rules = config.transactions
        return CheckLimits(rules.timeout_ms, rules.check_max, kept_ms)

    def _ask_again(self, half: HalfMessage) -> asyncio.Future[bool]:
        """Store the half message with one more check, and ask; see `_put` for the future.

        One whose properties leave no room for that, as RocketMQ may have stored it, is asked about
        as it is: each round, until it is as old as the files that are kept.
        """
        times = half.check_times + 1
        draft = renewed_draft(half, times)
        here = (half.queue_offset, half.physical_offset)
        return self._move(
            half,
            draft,
            lambda stored: self._ask(half, draft, (stored.queue_offset, stored.physical_offset)),
            lambda: self._ask(half, half.draft, here),
        )

    def _move(
        self,
        half: HalfMessage,
        draft: RecordDraft,
        then: Callable[[Appended], None] | None,
        otherwise: Callable[[], None] | None = None,
    ) -> asyncio.Future[bool]:
        """Store the half message again; see `_put`."""
        ledger, offset = self._books.ledger, half.queue_offset

        def done(appended: Appended) -> None:
            place = (appended.queue_offset, appended.physical_offset)
            ledger.moved(offset, half.first_offset, place)
            self._books.op_log.add([offset])
            if then is not None:
                then(appended)

        return self._put(half, draft, done, otherwise)

    async def _give_up(self, half: HalfMessage) -> asyncio.Future[bool]:
        """Keep the half message where an operator finds it, and ask nobody any more."""
        await self._ensure_topic()
        ended = self._books.ledger.records_of(half.queue_offset)

        def done(_: Appended) -> None:
            self._books.ledger.settle(half.queue_offset, State.GIVEN_UP)
            self._books.op_log.add(ended)
            self._books.counts.ended(half.topic, State.GIVEN_UP, open_before=1)
            log.error(
                "transaction.given_up topic=%s group=%s id=%s checks=%d kept_in=%s",
                half.topic, half.producer_group, half.unique_key, half.check_times,
                TRANS_CHECK_MAX_TIME_TOPIC,
            )  # fmt: skip

        return self._put(half, given_up_draft(half), done)

    def _put(
        self,
        half: HalfMessage,
        draft: RecordDraft,
        then: Callable[[Appended], None],
        otherwise: Callable[[], None] | None = None,
    ) -> asyncio.Future[bool]:
        """Store a record in place of the half message.

        Args:
            half: is busy meanwhile.
            draft: the record.
            then: called when it is stored.
            otherwise: called when it never can be.

        Returns:
            Whether the round goes on: False if the store takes no records now.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._books.ledger.state(half.queue_offset) is not State.OPEN:
            future.set_result(True)  # it ended while the topic was saved
            return future
        self._books.ledger.begin(half.queue_offset)

        def done(result: PutResult) -> None:
            if not future.done():  # first: what follows may fail, and the round waits for this
                future.set_result(result.is_settled)
            if result.appended:
                then(result.appended[0])
                return
            self._books.ledger.settle(half.queue_offset, State.OPEN)
            if result.status is PutStatus.MESSAGE_ILLEGAL and otherwise is not None:
                otherwise()
                return
            log.warning("transaction_check.put_refused reason=%s", result.reason)

        self._books.put(draft, done)
        return future

    async def _ensure_topic(self) -> None:
        """Make the topic of what is given up, durably, before the first message is in it."""
        if self._topics.get(TRANS_CHECK_MAX_TIME_TOPIC) is None:
            self._topics.put(TopicConfig(TRANS_CHECK_MAX_TIME_TOPIC, 1, 1))
        if not self._topics.is_saved(TRANS_CHECK_MAX_TIME_TOPIC):
            await self._topics.persist()

    def _pass_over(self, offset: int, error: MalformedMessageError) -> None:
        """Let a record that is no half message keep nobody from the others."""
        log.error("transaction_check.passed_over queue_offset=%d reason=%s", offset, error)
        self._books.ledger.begin(offset)
        self._books.ledger.settle(offset, State.GIVEN_UP)
        self._books.op_log.add([offset])

    # Asking

    def _ask(self, half: HalfMessage, draft: RecordDraft, place: tuple[int, int]) -> None:
        """Send the check to one of the producers of the group that are connected.

        Args:
            half: what it is about.
            draft: the record that stands for it now.
            place: queue offset and log position of that.
        """
        peer = self._next_producer(half.producer_group)
        if peer is None:
            log.info(
                "transaction_check.nobody_to_ask group=%s id=%s", half.producer_group,
                half.unique_key,
            )  # fmt: skip
            return
        self._books.counts.checks[half.topic] += 1
        try:
            peer.send(check_request(half, draft, place, self._config.now.broker_name))
        except KourouError as error:
            log.warning("transaction_check.not_sent group=%s reason=%s", half.producer_group, error)

    def _next_producer(self, group: str) -> Peer | None:
        """Return the connection whose turn it is."""
        members = self._clients.producers(group)
        if not members:
            return None
        self._turn += 1
        return members[self._turn % len(members)].peer


def check_request(
    half: HalfMessage, draft: RecordDraft, place: tuple[int, int], broker_name: str
) -> RemotingCommand:
    """Return CHECK_TRANSACTION_STATE (39) for a half record and its place, see `_ask`.

    The body is the message with its own topic and queue, and the place of the half record.
    """
    queue_offset, physical_offset = place
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        topic=TRANS_HALF_TOPIC,
        msg_id=half.unique_key,
        transaction_id=half.unique_key,
        offset_msg_id=encode_offset_msg_id(draft.store_host, physical_offset),
        broker_name=broker_name,
    )
    shown = replace(draft, topic=half.topic.encode(), queue_id=half.queue_id)
    body = encode_record(shown, queue_offset, physical_offset, half.store_at_ms)
    return request(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)
