"""Ledger of acknowledged and delivered messages, and of the deliveries that are still missing.

Every other property of a message (body, size, fate of its transaction, failures of its listeners)
is computed from a hash of its key, by senders, consumers, checks and judges alike. So the killing
of a process loses no information.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou import Message, MessageExt, SendAttempt, SendOutcome, SendReceipt, TransactionState
from tests.torture.chaos.pop_ledger import PopLedger

MIXED: Final = "Mixed"
ORDERS: Final = "Orders"
REQUESTS: Final = "Requests"
CONCURRENT: Final = "concurrent"
"""Concurrent, with two members; their listeners fail according to `fails`."""
ORDERLY: Final = "orderly"
FILTERED: Final = "filtered"
"""They subscribe by SQL92."""
POLLERS: Final = "pollers"
BROADCAST: Final = "broadcast"
"""One member, which broadcasts and keeps its own offsets."""
POPPERS: Final = "poppers"
"""Simple consumers, whose processes are killed; see `poppers`."""
ORDERED_POPPERS: Final = "ordered-poppers"
"""The same, but they pop in order."""
POP_TOPICS: Final = {POPPERS: MIXED, ORDERED_POPPERS: ORDERS}
"""Topics by group, of the groups that consume by pop."""
POP_FILTERS: Final = {POPPERS: "lot >= 4"}
"""Expressions by group, of the groups that pop with a filter."""
TRANSACTIONAL: Final = "transactional"
RECREATED: Final = "Recreated"
"""A topic that is deleted and created again while messages are sent to it."""
GONE: Final = "Gone"
"""Also deleted and created again, but no messages are sent while it does not exist."""
GROUPS: Final = {
    MIXED: (CONCURRENT, FILTERED, POLLERS, BROADCAST, POPPERS),
    ORDERS: (ORDERLY, ORDERED_POPPERS),
    RECREATED: ("recreated-pushers", "recreated-orderly", "recreated-pollers"),
    GONE: ("gone-pushers", "gone-orderly", "gone-pollers"),
}
FILTER: Final = "kind IN ('plain', 'at', 'pay') AND lot BETWEEN 2 AND 5"
TRIES_MAX: Final = 3
"""Redeliveries before a message of the concurrent group becomes a dead letter."""


WAIT_MS_MAX: Final = 60_000
"""Longest wait of a delayed message with correct clocks, including attempts of its producer."""


def now_ms() -> int:
    return int(time.time() * 1000)  # noqa: TID251 - a real broker has real time


def fate(key: str, salt: str) -> int:
    """Return a pseudo-random number below 2**32, determined by key and salt."""
    return zlib.crc32(f"{salt}:{key}".encode())


def lot(key: str) -> int:
    return fate(key, "lot") % 10


def kind(key: str) -> str:
    return key.partition("-")[0]


def body_of(key: str) -> bytes:
    """Return the body of the message with this key: the key, and up to 1,200 bytes more."""
    return f"{key}:".encode() + b"." * (fate(key, "size") % 1_200)


def key_of(body: bytes) -> str:
    return body.partition(b":")[0].decode()


def message_of(
    key: str,
    topic: str = MIXED,
    *,
    delay_level: int = 0,
    deliver_at_ms: int = 0,
    delay_ms: int = 0,
) -> Message:
    """Return the message with this key."""
    return Message(
        topic,
        body_of(key),
        keys=[key],
        properties={"kind": kind(key), "lot": str(lot(key))},
        delay_level=delay_level,
        deliver_at_ms=deliver_at_ms,
        delay_ms=delay_ms,
    )


def is_committed(key: str) -> bool:
    """Return whether the transaction of the key is committed, by its producer or in a check."""
    return fate(key, "truth") % 3 > 0


def truth(key: str) -> TransactionState:
    return TransactionState.COMMIT if is_committed(key) else TransactionState.ROLLBACK


def is_poison(key: str) -> bool:
    """Return whether the concurrent group's listeners always fail with the message."""
    return fate(key, "listener") % 60 == 0


def fails(key: str, reconsume_times: int) -> bool:
    """Return whether the concurrent group's listeners fail with this delivery of the message."""
    return is_poison(key) or (fate(key, "listener") % 12 == 1 and reconsume_times < 2)


def fails_once(key: str) -> bool:
    """Return whether listeners of the deleted topics fail with the first delivery."""
    return fate(key, "listener") % 40 == 0


def must_deliver(group: str, key: str) -> bool:
    """Return whether the message must be delivered to a group that consumes its topic."""
    if group == POPPERS:
        return lot(key) >= 4
    return group != FILTERED or (kind(key) in ("plain", "at", "pay") and 2 <= lot(key) <= 5)


class Arrival(NamedTuple):
    """One delivery to a listener."""

    queue_id: int
    queue_offset: int
    reconsume_times: int
    came_at_ms: int


@dataclass
class Ledger:
    """The ledger. Listeners write to it on their own threads, beside the event loop.

    Attributes:
        begun: topic by key, of all messages whose send has begun.
        tries: number of attempts by key, for producers that count them.
        acknowledged: topic by key.
        due_ms: earliest time of delivery, by key.
        recalling: keys whose recall has an unknown result.
        recalled: keys whose recall was acknowledged.
        seen: deliveries, by group and key.
        missing: keys still to be delivered, by group; in groups that pop, to be acknowledged.
        pops: deliveries and acknowledgements of groups that pop.
        kills: when the broker was being killed: first and last possible time in ms of each kill.
        failures: (figure, description) of each failure.
        counts: numbers of events by name.
        clock: times at which the broker's wall clock was set, and its offset from then on.
        is_over: tells the senders to end.
    """

    begun: dict[str, str] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[str, str] = field(default_factory=dict)
    due_ms: dict[str, int] = field(default_factory=dict)
    recalling: set[str] = field(default_factory=set)
    recalled: set[str] = field(default_factory=set)
    seen: dict[str, defaultdict[str, list[Arrival]]] = field(
        default_factory=lambda: {
            group: defaultdict(list) for groups in GROUPS.values() for group in groups
        }
    )
    missing: dict[str, set[str]] = field(
        default_factory=lambda: {group: set() for groups in GROUPS.values() for group in groups}
    )
    pops: dict[str, PopLedger] = field(
        default_factory=lambda: {group: PopLedger() for group in POP_TOPICS}
    )
    kills: list[tuple[int, int]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    clock: list[tuple[int, int]] = field(default_factory=list)
    is_over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, key: str, topic: str = MIXED) -> None:
        """Record that a send begins: from now on the message may be delivered."""
        self.begun[key] = topic

    def acknowledge(self, key: str) -> None:
        """Record an acknowledgement: the message must be delivered to its groups."""
        topic = self.begun[key]
        # A message may be delivered at the same time as its acknowledgement arrives: a message
        # that is done must not become missing.
        with self._lock:
            self.acknowledged[key] = topic
            for group in GROUPS[topic]:
                if must_deliver(group, key) and not self._is_done(group, key):
                    self.missing[group].add(key)

    def expect_loss(self, topic: str) -> None:
        """Record the deletion of a topic, with which all due messages may be lost."""
        at_ms = now_ms() + self.jumped_ms()
        with self._lock:
            for group in GROUPS[topic]:
                missing = self.missing[group]
                missing -= {key for key in missing if self.due_ms.get(key, 0) <= at_ms}

    def note_clock(self, ahead_ms: int) -> None:
        """Record that the broker's wall clock is ahead by `ahead_ms` from now on."""
        self.clock.append((now_ms(), ahead_ms))

    def jumped_ms(self, until_ms: int | None = None) -> int:
        """Return the largest change of the broker's clock while a message waited.

        Args:
            until_ms: time of its delivery; None: now.
        """
        if until_ms is None:
            until_ms = now_ms()
        ahead = self.ahead_ms(until_ms - WAIT_MS_MAX, until_ms)
        return max(ahead) - min(ahead)

    def ahead_ms(self, from_ms: int, until_ms: int) -> set[int]:
        """Return all offsets of the broker's clock from one time until another."""
        ahead, before = set[int](), 0
        for at_ms, ahead_ms in self.clock:
            if at_ms <= from_ms:
                before = ahead_ms
            elif at_ms <= until_ms:
                ahead.add(ahead_ms)
        return ahead | {before}

    def begin_recall(self, key: str) -> None:
        """Record the start of a recall: the message may be delivered or not."""
        self.recalling.add(key)
        with self._lock:
            for missing in self.missing.values():
                missing.discard(key)

    def finish_recall(self, key: str) -> None:
        """Record a successful recall."""
        self.recalling.discard(key)
        self.recalled.add(key)

    def note(self, group: str, message: MessageExt) -> str:
        """Record that a listener of the group has finished the message; return its key."""
        key = key_of(message.body)
        arrival = Arrival(message.queue_id, message.queue_offset, message.reconsume_times, now_ms())
        self.note_arrival(group, key, arrival)
        return key

    def note_arrival(self, group: str, key: str, arrival: Arrival) -> None:
        """Record a delivery."""
        with self._lock:
            self.seen[group][key].append(arrival)
        self.look_again(group, key)

    def look_again(self, group: str, key: str) -> None:
        """Look whether the message is still missing."""
        with self._lock:
            if self._is_done(group, key):
                self.missing[group].discard(key)

    def count_missing(self, is_wanted: Callable[[str, str], bool]) -> int:
        """Return the number of missing deliveries that are wanted, by group and key."""
        with self._lock:
            return sum(
                is_wanted(group, key) for group, keys in self.missing.items() for key in keys
            )

    def _is_done(self, group: str, key: str) -> bool:
        """Return whether the message was delivered, and is not redelivered after a failure.

        For a group that pops: whether a member began to acknowledge it. Without an answer it may be
        acknowledged, and is delivered again otherwise.
        """
        if group in self.pops:
            return key in self.pops[group].ack_begun
        return any(
            group != CONCURRENT
            or not fails(key, arrival.reconsume_times)
            or arrival.reconsume_times >= TRIES_MAX
            for arrival in self.seen[group].get(key, ())
        )

    def fail(self, figure: str, text: str) -> None:
        self.failures.append((figure, text))


class Tries:
    """Producer hook that counts the attempts of each message."""

    def __init__(self, ledger: Ledger) -> None:
        self._tries = ledger.tries

    def before_send(self, attempt: SendAttempt) -> None:
        for message in attempt.messages:
            self._tries[message.keys[0]] += 1

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Do nothing."""


def acknowledge_all(ledger: Ledger, keys: Sequence[str], receipts: Sequence[SendReceipt]) -> None:
    for key, _ in zip(keys, receipts, strict=True):
        ledger.acknowledge(key)
