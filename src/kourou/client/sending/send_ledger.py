"""SendLedger: a hook that records each send of a producer, for `kourou pipeline audit`.

    ledger = SendLedger("order-ledger")
    async with Producer("shop", hooks=[ledger]) as producer:
        ...

A ledger is the producer's own statement of what it has sent: the unique id, topic, position, times
and outcome of each try. The audit compares it with the store, and so finds messages that a broker
has acknowledged and lost.

Entries are written in the background, every `flush_interval_ms`, and a send never waits for them.
A flush also writes the tries that are in progress, as `begun`. These are the limits:

- If the process is killed, the entries since the last flush are lost. The ledger then has no entry
  `closed`, and the audit judges no message that it may have sent after the last entry. A message
  without an entry and without a record in the store leaves no trace at all.
- If entries come faster than the destination accepts them, at most `waiting_max` wait, and further
  ones are dropped. Their numbers are missing in the ledger: the audit sees that it is incomplete.
- Entries that cannot be written are kept and written again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kourou.client.background import BackgroundTasks
from kourou.client.instance import ClientInstance
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.ledger_destinations import LedgerDestination, LedgerTopic
from kourou.client.sending.ledger_entry import EntryKind, EntryOutcome, LedgerEntry
from kourou.client.sending.send_hooks import SendAttempt, SendOutcome
from kourou.client.sending.transaction import TransactionEnd
from kourou.errors import (
    ConfigError,
    ConnectFailedError,
    KourouError,
    NoRouteError,
    RemoteError,
    UsageError,
)
from kourou.model import properties as names
from kourou.model.message import Message
from kourou.model.properties import decode_properties

log = logging.getLogger(__name__)

FLUSH_INTERVAL_MS: Final = 1_000
WAITING_MAX: Final = 65_536
"""Entries that wait, those of tries in progress included: about 25 MB."""

CLOSE_TIMEOUT_S: Final = 5.0
"""Time for which a closing producer waits for the remaining entries."""

_NOT_SENT: Final = (ConnectFailedError, NoRouteError, UsageError)
"""Errors that occur before the request leaves the client."""


@dataclass(slots=True)
class _Open:
    """A try in progress; its messages have the numbers from `first_seq` on."""

    attempt: SendAttempt
    first_seq: int
    begun_ms: int
    is_written: bool = False


class SendLedger:
    """Hook that records all sends of one producer, ends of transactions, and recalls.

    It starts and closes with its producer. Closing writes the remaining entries for up to
    `CLOSE_TIMEOUT_S`. Works for `Producer` and `TransactionProducer`, also those of
    `kourou.blocking`; batches, background sends and one-way sends are recorded message by message.

    Args:
        destination: the name of a topic, written by a producer of its own with the settings of the
            hooked one; or another destination, such as `LedgerFiles`.
        flush_interval_ms: time between two writes; entries of this time are lost in a crash.
        waiting_max: maximum number of entries that wait; further ones are dropped and counted.

    Attributes:
        run: identifies the producer in the ledger; empty until a producer uses the hook.
        dropped: number of entries that are missing in the ledger.

    Raises:
        ConfigError: an argument is out of range.
        InvalidTopicError: the name of the topic is invalid.
    """

    def __init__(
        self,
        destination: str | LedgerDestination,
        *,
        flush_interval_ms: int = FLUSH_INTERVAL_MS,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        if flush_interval_ms < 1:
            raise ConfigError(f"flush_interval_ms is {flush_interval_ms!r}: at least 1 is needed")
        if waiting_max < 1:
            raise ConfigError(f"waiting_max is {waiting_max!r}: at least 1 is needed")
        self.run = ""
        self.dropped = 0
        self._destination: LedgerDestination = (
            LedgerTopic(destination) if isinstance(destination, str) else destination
        )
        self._interval_s = flush_interval_ms / 1000
        self._waiting_max = waiting_max
        self._seq = 0
        self._open: dict[int, _Open] = {}  # by the identity of the attempt
        self._open_messages = 0
        self._waiting: deque[LedgerEntry] = deque()
        self._is_closing = False
        self._is_failing = False
        self._tasks = BackgroundTasks()
        self._task: asyncio.Task[None] | None = None

    def attach(self, client: ClientInstance, group: str) -> None:
        """Bind the ledger to a producer; its constructor calls this.

        Raises:
            UsageError: another producer uses the ledger already.
        """
        if self.run:
            raise UsageError("the ledger belongs to another producer: create a SendLedger for each")
        self.run = f"{client.client_id}#{client.runtime.random.getrandbits(32):08x}"
        self._client = client
        self._group = group
        client.companions.add(self)

    def before_send(self, attempt: SendAttempt) -> None:
        """Number a try, and remember it as begun."""
        count = len(attempt.msg_ids)
        first = self._take_numbers(count)
        if self._is_closing or self._is_full(count):
            self._drop(count)
            return
        self._open[id(attempt)] = _Open(attempt, first, self._now_ms())
        self._open_messages += count

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Queue the entries of a try that has ended."""
        begun = self._open.pop(id(attempt), None)
        if begun is None:
            return  # dropped
        self._open_messages -= len(attempt.msg_ids)
        if self._is_closing:
            return  # it is written as begun
        self._waiting.extend(self._ended_entries(begun, outcome))
        if len(self._waiting) > self._waiting_max // 2 and not self._is_failing:
            self._wake.set()

    def end_transaction(self, end: TransactionEnd) -> None:
        """Record the end of a transaction that is about to be sent."""
        self._add_end(end, EntryOutcome.UNKNOWN)

    def transaction_ended(self, end: TransactionEnd) -> None:
        """Record that the broker has confirmed the end of a transaction."""
        self._add_end(end, EntryOutcome.STORED)

    def recalled(self, topic: str, msg_id: str, *, error: BaseException | None) -> None:
        """Record the result of a recall."""
        outcome = EntryOutcome.STORED if error is None else _outcome_of(error)
        self._add(EntryKind.RECALL, outcome, topic=topic, msg_id=msg_id, **_failure(error))

    def start(self) -> None:
        """Start writing; called when the producer starts."""
        self._wake = asyncio.Event()
        self._add(EntryKind.OPENED, EntryOutcome.STORED)
        self._task = self._tasks.start(self._run, "ledger")

    async def close(self) -> None:
        """Write the remaining entries within `CLOSE_TIMEOUT_S`; called when the producer closes."""
        if self._task is None:
            return
        self._is_closing = True
        self._wake.set()
        _, late = await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT_S)
        if late:
            self._task.cancel()
            log.warning(
                "ledger.cut_short run=%s lost_entries=%d",
                self.run, len(self._waiting),
            )  # fmt: skip
        await self._destination.close()

    def abort(self) -> None:
        """Stop at once, as a killed process would; the remaining entries are lost."""
        self._is_closing = True
        self._tasks.cancel()

    async def _run(self) -> None:
        await self._destination.open(self._client)
        while not self._is_closing:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if not self._is_closing:
                self._wake.clear()
                await self._flush()
        self._add_closed()
        while not await self._flush():  # noqa: ASYNC110 - until it succeeds or `close` cancels it
            await asyncio.sleep(self._interval_s)

    async def _flush(self) -> bool:
        """Write all that waits, and tries in progress as begun; return whether it is stored."""
        self._add_begun()
        entries = list(self._waiting)
        if not entries:
            return True
        try:
            await self._destination.write(entries)
        except (KourouError, OSError) as error:
            if not self._is_failing:
                self._is_failing = True
                log.warning("ledger.not_written run=%s reason=%s", self.run, error)
            return False
        self._is_failing = False
        for _ in entries:  # others may have been added behind them
            self._waiting.popleft()
        return True

    def _add_end(self, end: TransactionEnd, outcome: EntryOutcome) -> None:
        self._add(
            EntryKind.TRANSACTION_END,
            outcome,
            topic=end.topic,
            msg_id=end.msg_id,
            state=end.state.name,
        )

    def _add(self, kind: EntryKind, outcome: EntryOutcome, **fields: Any) -> None:  # noqa: ANN401
        seq = self._take_numbers(1)
        if self._is_closing or self._is_full(1):
            self._drop(1)
            return
        self._waiting.append(self._entry(kind, outcome, seq, **fields))

    def _add_closed(self) -> None:
        """Add the last entry, also to a full queue."""
        self._add_begun()
        self._waiting.append(
            self._entry(EntryKind.CLOSED, EntryOutcome.STORED, self._take_numbers(1))
        )

    def _entry(
        self,
        kind: EntryKind,
        outcome: EntryOutcome,
        seq: int,
        **fields: Any,  # noqa: ANN401 - other fields of LedgerEntry
    ) -> LedgerEntry:
        now_ms = self._now_ms()
        return LedgerEntry(
            run=self.run,
            seq=seq,
            kind=kind,
            group=self._group,
            outcome=outcome,
            begun_ms=now_ms,
            ended_ms=now_ms,
            last_seq=self._seq,
            **fields,
        )

    def _add_begun(self) -> None:
        """Queue an entry for each message of the tries in progress that has none yet."""
        for one in self._open.values():
            if not one.is_written:
                one.is_written = True
                self._waiting.extend(self._entries(one, EntryOutcome.BEGUN))

    def _ended_entries(self, one: _Open, outcome: SendOutcome) -> Iterator[LedgerEntry]:
        times: dict[str, Any] = {"ended_ms": self._now_ms(), "last_seq": self._seq}
        if not outcome.receipts:
            result = EntryOutcome.UNKNOWN if outcome.error is None else _outcome_of(outcome.error)
            return self._entries(one, result, **times, **_failure(outcome.error))
        return self._entries(one, EntryOutcome.STORED, outcome.receipts, **times)

    def _entries(
        self,
        one: _Open,
        outcome: EntryOutcome,
        receipts: Sequence[SendReceipt] = (),
        **fields: Any,  # noqa: ANN401 - other fields of LedgerEntry
    ) -> Iterator[LedgerEntry]:
        """Yield an entry for each message of a try."""
        attempt = one.attempt
        properties = decode_properties(attempt.properties.encode(errors="replace"))
        is_half = properties.get(names.TRAN_MSG, "").lower() == "true"
        for index, (msg_id, message) in enumerate(
            zip(attempt.msg_ids, attempt.messages, strict=True)
        ):
            receipt = receipts[index] if receipts else None
            queue = attempt.queue if receipt is None else receipt.queue
            is_placed = receipt is not None and not (is_half or message.is_delayed)
            yield LedgerEntry(
                run=self.run,
                seq=one.first_seq + index,
                kind=EntryKind.SEND,
                group=attempt.group,
                begun_ms=one.begun_ms,
                outcome=outcome,
                msg_id=msg_id,
                topic=attempt.queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                queue_offset=receipt.queue_offset if receipt and is_placed else None,
                attempt=attempt.number,
                sharding_key=message.properties.get(names.SHARDING_KEY, ""),
                is_oneway=attempt.is_oneway,
                is_half=is_half,
                is_scheduled=message.is_delayed,
                deliver_at_ms=_deliver_at_ms(message, one.begun_ms),
                **fields,
            )

    def _take_numbers(self, count: int) -> int:
        """Assign the next numbers and return the first one."""
        first = self._seq + 1
        self._seq += count
        return first

    def _is_full(self, count: int) -> bool:
        return len(self._waiting) + self._open_messages + count > self._waiting_max

    def _drop(self, count: int) -> None:
        """Count entries whose numbers will be missing, and log the first drop."""
        if not self.dropped:
            log.warning(
                "ledger.dropped run=%s reason=%s",
                self.run,
                "the producer is closing" if self._is_closing else "too many entries wait",
            )
        self.dropped += count

    def _now_ms(self) -> int:
        return self._client.runtime.clock.now_ms()


def _outcome_of(error: BaseException) -> EntryOutcome:
    is_refused = isinstance(error, (RemoteError, *_NOT_SENT))
    return EntryOutcome.REFUSED if is_refused else EntryOutcome.UNKNOWN


def _failure(error: BaseException | None) -> dict[str, Any]:
    """Return the fields that describe an error."""
    if error is None:
        return {}
    code = error.code if isinstance(error, RemoteError) else None
    return {"code": code, "reason": type(error).__name__}


def _deliver_at_ms(message: Message, sent_at_ms: int) -> int:
    """Return the delivery time of a scheduled message; 0 for a delay level, whose span is unknown.

    The levels are a setting of the broker.
    """
    return message.deliver_at_ms or (sent_at_ms + message.delay_ms if message.delay_ms else 0)
