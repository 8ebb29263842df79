"""Check rounds: ask producers about half messages that have neither been committed nor rolled back.

A round goes through the open half messages in order, some at a time. Before a check is sent, the
half message is stored again with a check count one higher. So the number of checks is bounded
despite crashes and producers that do not answer. Then CHECK_TRANSACTION_STATE (39) is sent one-way
to one connected producer of the group, in rotation. The producer answers with END_TRANSACTION.

As in Java, a check counts even if no producer of the group is connected. After
`transaction_check_max` checks the message is moved to TRANS_CHECK_MAX_TIME_TOPIC;
RESUME_CHECK_HALF_MESSAGE (323) resumes its checks.

    half message                                                   action
    checked `transaction_check_max` times, or older than the       given up
    retention time of files
    stored after the round began                                   the round ends here
    has an immunity time of its own that is not over               skipped; stored again where many
                                                                   messages follow it
    younger than `transaction_timeout_ms`, and never checked       the round ends here
    any other                                                      a check is sent to a producer

Java cannot tell whether an end of the last seconds is still on its way to the op queue, and so
looks repeatedly; here the ledger has that state. RocketMQ stores each message with an immunity time
again in every round. The age of a message is at least the time since it was stored, even if its
producer's clock is ahead.

Clocks may be wrong. Store times may be wrong too, because they never go back after a clock was
ahead. So the age is limited from below and above by the rounds that already found the message, or
did not yet (`RoundHistory`).

Source: TransactionalMessageServiceImpl.java, AbstractTransactionalMessageCheckListener.java,
DefaultTransactionalMessageCheckListener.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from kourou.broker.clients import Peer
from kourou.broker.context import BrokerContext
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.transactions.context import TransactionContext
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
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.protocol.sending import CheckTransactionStateRequestHeader
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import AppendedRecord, GetRequest

log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 3_000
"""Number of rounds that are recorded: a day at one per 30 s."""


class CheckAction(Enum):
    """Action of a round for a half message; see the module's table."""

    GIVE_UP = auto()
    END_ROUND = auto()
    SKIP = auto()
    CHECK = auto()


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Configured limits of the rules.

    Attributes:
        timeout_ms: time that a producer has to end a transaction before it is checked.
        checks_max: maximum number of checks.
        retention_ms: retention time of files; an older message may be deleted at any time.
    """

    timeout_ms: int
    checks_max: int
    retention_ms: int


class RoundHistory:
    """Start times of rounds, on a clock that never jumps, and the half queue's end at each.

    The start of the broker counts as a round.
    """

    def __init__(self) -> None:
        self._began_ms: deque[int] = deque(maxlen=ROUNDS_MAX)
        self._ends: deque[int] = deque(maxlen=ROUNDS_MAX)

    def begin(self, steady_ms: int, end: int) -> None:
        """Record the start of a round."""
        self._began_ms.append(steady_ms)
        self._ends.append(end)

    def age_ms(self, half: HalfMessage, clock_age_ms: int, steady_ms: int) -> int:
        """Return the age of a half message; `clock_age_ms` is its age by the wall clock."""
        found = bisect_right(self._ends, half.queue_offset)  # the first round that found it
        if found and half.first_offset == half.queue_offset:  # a later record is younger than it
            clock_age_ms = min(clock_age_ms, steady_ms - self._began_ms[found - 1])
        if found < len(self._ends):
            clock_age_ms = max(clock_age_ms, steady_ms - self._began_ms[found])
        return clock_age_ms


def choose_action(half: HalfMessage, age_ms: int, end: int, limits: CheckLimits) -> CheckAction:
    """Return the action of a round for an open half message.

    Args:
        half: the message.
        age_ms: its age.
        end: end of the half queue when the round began.
        limits: the configured limits.
    """
    if half.queue_offset >= end:
        return CheckAction.END_ROUND
    if half.check_times >= limits.checks_max or age_ms > limits.retention_ms:
        return CheckAction.GIVE_UP
    immunity_ms = half.immunity_ms(limits.timeout_ms)
    if immunity_ms is not None:
        return CheckAction.SKIP if age_ms <= immunity_ms else CheckAction.CHECK
    was_asked = half.check_times > 0 and half.first_offset != half.queue_offset
    return CheckAction.CHECK if was_asked or age_ms > limits.timeout_ms else CheckAction.END_ROUND


ROUND_MS: Final = 60_000
"""Time limit of a round; the next round continues with the rest."""
READ_MESSAGES_MAX: Final = 32
"""Number of half messages that are read, and stored again, together."""
READ_BYTES_MAX: Final = 4 * 1024 * 1024
MOVED_MAX: Final = 200_000
"""Limit on records of open transactions that were stored again, because each is kept in memory. At
this limit, rounds stop until some of the transactions have ended."""
FOLLOWING_MAX: Final = 10_000
"""A half message with a long immunity time is stored again once this many follow it: the next start
must read all half messages from the first open one on."""


class CheckRounds:
    """Runs the check rounds of one broker."""

    def __init__(
        self, context: TransactionContext, broker: BrokerContext, reads: VerifiedReads
    ) -> None:
        """Check the open transactions of `context`; `reads` read the half messages."""
        self._context = context
        self._config = broker.live_config
        self._topics = broker.topics
        self._reader = broker.store.reader
        self._reads = reads
        self._clients = broker.clients
        self._rounds = RoundHistory()
        self._rounds.begin(steady_ms(), self._reader.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE))
        self._rotation = 0
        self._is_blocked = False

    async def run(self) -> None:
        """Run one round. A failed read or write ends it, and the next round tries again."""
        until_ms = steady_ms() + ROUND_MS
        offset = self._context.ledger.head
        end = self._reader.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE)
        self._rounds.begin(steady_ms(), end)
        while steady_ms() < until_ms and self._context.ledger.moved_count < MOVED_MAX:
            offset = self._context.ledger.next_open(offset, end)
            if offset >= end:
                return
            found = await self._read(offset)
            if found is None:
                return
            if not await self._check_records(found[0], end):
                return
            offset = max(offset + 1, found[1])

    async def _read(self, offset: int) -> tuple[list[tuple[int, bytes]], int] | None:
        """Return records with their queue offsets, and the next offset; None if one is damaged."""
        asked = GetRequest(offset, READ_MESSAGES_MAX, READ_BYTES_MAX, None)
        try:
            found = await self._reads.read(TRANS_HALF_TOPIC, HALF_QUEUE, asked)
        except CorruptRecordError as error:
            if not self._is_blocked:
                self._is_blocked = True
                log.error(  # noqa: TRY400 - the offset identifies the record
                    "transaction_check.blocked queue_offset=%d reason=%s", offset, error
                )
            return None
        self._is_blocked = False
        offsets = [expected.queue_offset for expected in found.plan.expected]
        return list(zip(offsets, found.records(), strict=True)), found.plan.next_offset

    async def _check_records(self, records: list[tuple[int, bytes]], end: int) -> bool:
        """Apply the rules to each record; return whether the round continues."""
        stores = []
        is_over = False
        for offset, record in records:
            if self._context.ledger.state(offset) is not State.OPEN:
                continue
            try:
                half = read_half(record)
            except MalformedMessageError as error:
                self._skip(offset, error)
                continue
            action = choose_action(half, self._age_ms(half), end, self._limits())
            if action is CheckAction.END_ROUND:
                is_over = True
                break
            if action is CheckAction.GIVE_UP:
                stores.append(await self._give_up(half))
            elif action is CheckAction.CHECK:
                stores.append(self._check_again(half))
            elif end - offset > FOLLOWING_MAX:
                stores.append(self._store_again(half, renewed_draft(half, None), None))
        are_stored = [await put for put in stores]
        return all(are_stored) and not is_over

    def _age_ms(self, half: HalfMessage) -> int:
        """Return the age of the half message, corrected for wrong clocks."""
        clock_age_ms = self._context.age_clock.now_ms() - min(
            half.draft.born_at_ms, half.store_at_ms
        )
        return self._rounds.age_ms(half, clock_age_ms, steady_ms())

    def _limits(self) -> CheckLimits:
        config = self._config.current
        retention_ms = config.store.retention.file_reserved_hours * 3_600_000
        rules = config.transactions
        return CheckLimits(rules.timeout_ms, rules.check_max, retention_ms)

    def _check_again(self, half: HalfMessage) -> asyncio.Future[bool]:
        """Store the half message with one more check, then send the check; see `_put`.

        If the properties leave no room for the count, as RocketMQ may have stored them, the check
        is sent for the present record: in each round, until the record exceeds the retention time.
        """
        times = half.check_times + 1
        draft = renewed_draft(half, times)
        present_position = (half.queue_offset, half.physical_offset)
        return self._store_again(
            half,
            draft,
            lambda stored: self._send_check(
                half, draft, (stored.queue_offset, stored.physical_offset)
            ),
            lambda: self._send_check(half, half.draft, present_position),
        )

    def _store_again(
        self,
        half: HalfMessage,
        draft: RecordDraft,
        then: Callable[[AppendedRecord], None] | None,
        otherwise: Callable[[], None] | None = None,
    ) -> asyncio.Future[bool]:
        """Store the half message again as the transaction's current record; see `_put`."""
        ledger, offset = self._context.ledger, half.queue_offset

        def done(appended: AppendedRecord) -> None:
            position = (appended.queue_offset, appended.physical_offset)
            ledger.moved(offset, half.first_offset, position)
            self._context.op_writer.add([offset])
            if then is not None:
                then(appended)

        return self._put(half, draft, done, otherwise)

    async def _give_up(self, half: HalfMessage) -> asyncio.Future[bool]:
        """Move the half message to the topic of given-up ones, and end its checks."""
        await self._ensure_topic()
        ended = self._context.ledger.records_of(half.queue_offset)

        def done(_: AppendedRecord) -> None:
            self._context.ledger.settle(half.queue_offset, State.GIVEN_UP)
            self._context.op_writer.add(ended)
            self._context.counts.ended(half.topic, State.GIVEN_UP, open_before=1)
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
        then: Callable[[AppendedRecord], None],
        otherwise: Callable[[], None] | None = None,
    ) -> asyncio.Future[bool]:
        """Store a record that replaces the half message.

        Args:
            half: BUSY until the result is known.
            draft: the record.
            then: called when it is stored.
            otherwise: called if the store refuses the record for good.

        Returns:
            Whether the round continues: False if the store accepts no records now.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._context.ledger.state(half.queue_offset) is not State.OPEN:
            future.set_result(True)  # it ended while the topic was being saved
            return future
        self._context.ledger.begin(half.queue_offset)

        def done(result: PutResult) -> None:
            if not future.done():  # first, because the round waits for it and the rest may fail
                future.set_result(result.is_settled)
            if result.appended:
                then(result.appended[0])
                return
            self._context.ledger.settle(half.queue_offset, State.OPEN)
            if result.status is PutStatus.MESSAGE_ILLEGAL and otherwise is not None:
                otherwise()
                return
            log.warning("transaction_check.put_refused reason=%s", result.reason)

        self._context.put(draft, done)
        return future

    async def _ensure_topic(self) -> None:
        """Create and save the topic of given-up messages before the first message is stored."""
        if self._topics.get(TRANS_CHECK_MAX_TIME_TOPIC) is None:
            self._topics.put(TopicConfig(TRANS_CHECK_MAX_TIME_TOPIC, 1, 1))
        if not self._topics.is_saved(TRANS_CHECK_MAX_TIME_TOPIC):
            await self._topics.persist()

    def _skip(self, offset: int, error: MalformedMessageError) -> None:
        """Mark a record that is not a half message as ended, so that it does not block others."""
        log.error("transaction_check.passed_over queue_offset=%d reason=%s", offset, error)
        self._context.ledger.begin(offset)
        self._context.ledger.settle(offset, State.GIVEN_UP)
        self._context.op_writer.add([offset])

    # Sending checks

    def _send_check(self, half: HalfMessage, draft: RecordDraft, position: tuple[int, int]) -> None:
        """Send the check to a connected producer of the group.

        Args:
            half: the half message.
            draft: the transaction's current record.
            position: queue offset and log position of that record.
        """
        peer = self._next_producer(half.producer_group)
        if peer is None:
            log.info(
                "transaction_check.nobody_to_ask group=%s id=%s", half.producer_group,
                half.unique_key,
            )  # fmt: skip
            return
        self._context.counts.checks[half.topic] += 1
        try:
            peer.send(check_request(half, draft, position, self._config.current.broker_name))
        except KourouError as error:
            log.warning("transaction_check.not_sent group=%s reason=%s", half.producer_group, error)

    def _next_producer(self, group: str) -> Peer | None:
        """Return the connection of the group's next producer in rotation; None if there is none."""
        members = self._clients.producers(group)
        if not members:
            return None
        self._rotation += 1
        return members[self._rotation % len(members)].peer


def check_request(
    half: HalfMessage, draft: RecordDraft, position: tuple[int, int], broker_name: str
) -> RemotingCommand:
    """Return CHECK_TRANSACTION_STATE (39) for a half record; arguments as in `_send_check`.

    The body is the message with its destination topic and queue, and the half record's position.
    """
    queue_offset, physical_offset = position
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        topic=TRANS_HALF_TOPIC,
        msg_id=half.unique_key,
        transaction_id=half.unique_key,
        offset_msg_id=encode_offset_msg_id(draft.store_host, physical_offset),
        broker_name=broker_name,
    )
    visible_draft = replace(draft, topic=half.topic.encode(), queue_id=half.queue_id)
    body = encode_record(visible_draft, queue_offset, physical_offset, half.store_at_ms)
    return request(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)
