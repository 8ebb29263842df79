"""What brokers promised of each message, what each group was given, and so what is still missing.

A message's key says everything else about it, to whoever sends, takes, is asked or judges: a hash
of it is its fate. So a process that is killed takes no knowledge along.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from kourou import Message, MessageExt, SendAttempt, SendOutcome, SendReceipt, TransactionState

MIXED: Final = "Mixed"
ORDERS: Final = "Orders"
ASKED: Final = "Asked"
TAKERS: Final = "takers"
"""Concurrent, of two members; their listeners fail as `fails` says."""
ORDERLY: Final = "orderly"
CHOOSERS: Final = "choosers"
"""They subscribe by SQL92."""
PULLERS: Final = "pullers"
HEARERS: Final = "hearers"
"""One member, which broadcasts and keeps its own offsets."""
PAYERS: Final = "payers"
REMADE: Final = "Remade"
"""A topic that is deleted and created again while messages are sent to it."""
GONE: Final = "Gone"
"""The same, but nobody sends while it does not exist."""
GROUPS: Final = {
    MIXED: (TAKERS, CHOOSERS, PULLERS, HEARERS),
    ORDERS: (ORDERLY,),
    REMADE: ("remade-pushers", "remade-orderly", "remade-pollers"),
    GONE: ("gone-pushers", "gone-orderly", "gone-pollers"),
}
CHOICE: Final = "kind IN ('plain', 'at', 'pay') AND lot BETWEEN 2 AND 5"
TRIES_MAX: Final = 3
"""Deliveries again before a message of the takers is a dead letter."""


WAIT_MS_MAX: Final = 60_000
"""Of delayed messages while clocks are right, the tries of their producers included."""


def now_ms() -> int:
    return int(time.time() * 1000)  # noqa: TID251 - a real broker has real time


def fate(key: str, salt: str) -> int:
    """Return a number that is always the same for the key, below 2**32."""
    return zlib.crc32(f"{salt}:{key}".encode())


def lot(key: str) -> int:
    return fate(key, "lot") % 10


def kind(key: str) -> str:
    return key.partition("-")[0]


def body_of(key: str) -> bytes:
    """Return the body that the message of this key has: the key, and up to 1,200 bytes more."""
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
    """Return the message of this key."""
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
    """Return how a transaction ends, whoever is asked."""
    return fate(key, "truth") % 3 > 0


def truth(key: str) -> TransactionState:
    return TransactionState.COMMIT if is_committed(key) else TransactionState.ROLLBACK


def is_poison(key: str) -> bool:
    """Return whether a listener of the takers fails with it each time."""
    return fate(key, "listener") % 60 == 0


def fails(key: str, reconsume_times: int) -> bool:
    """Return whether a listener of the takers fails with it this time."""
    return is_poison(key) or (fate(key, "listener") % 12 == 1 and reconsume_times < 2)


def fails_once(key: str) -> bool:
    """Return whether a listener of a topic that is deleted at times fails with it at first."""
    return fate(key, "listener") % 40 == 0


def wants(group: str, key: str) -> bool:
    """Return whether a group that consumes the message's topic is to get it."""
    return group != CHOOSERS or (kind(key) in ("plain", "at", "pay") and 2 <= lot(key) <= 5)


class Arrival(NamedTuple):
    """A message as a listener got it."""

    queue_id: int
    queue_offset: int
    reconsume_times: int
    came_at_ms: int


@dataclass
class Ledger:
    """All of it. Listeners note what they get on threads of their own, beside the event loop.

    Attributes:
        begun: keys that somebody tried to send.
        tries: how often each was sent, by the producers that know.
        acknowledged: topic by key.
        due_ms: before when a message must not come, by key.
        recalling: keys of which it is not known whether they were taken back.
        recalled: keys that were, and whose broker has said so.
        seen: what came, by group and key.
        missing: what must still come, by group.
        failures: what should not have happened, by the figure it spoils.
        counts: what happened how often.
        clock: when the broker's wall clock was set, and how far it has been ahead since.
        is_over: whoever sends should end.
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
    failures: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    clock: list[tuple[int, int]] = field(default_factory=list)
    is_over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, key: str, topic: str = MIXED) -> None:
        """Note that a message leaves: from now on it may be seen."""
        self.begun[key] = topic

    def promise(self, key: str) -> None:
        """Note that a broker has it, and consumers are to get it."""
        topic = self.begun[key]
        # A message may arrive while its answer does: what is done must not be missing after that.
        with self._lock:
            self.acknowledged[key] = topic
            for group in GROUPS[topic]:
                if wants(group, key) and not self._is_done(group, key):
                    self.missing[group].add(key)

    def release(self, topic: str) -> None:
        """Note that a topic is deleted: what is due may be lost with it."""
        at_ms = now_ms() + self.jumped_ms()
        with self._lock:
            for group in GROUPS[topic]:
                missing = self.missing[group]
                missing -= {key for key in missing if self.due_ms.get(key, 0) <= at_ms}

    def note_clock(self, ahead_ms: int) -> None:
        """Note that the broker's wall clock is ahead of ours by so much from now on."""
        self.clock.append((now_ms(), ahead_ms))

    def jumped_ms(self, until_ms: int | None = None) -> int:
        """Return by how much the broker's clock moved while a message waited that came then.

        Args:
            until_ms: when it came; None: now.
        """
        if until_ms is None:
            until_ms = now_ms()
        ahead, before = set[int](), 0
        for at_ms, ahead_ms in self.clock:
            if at_ms <= until_ms - WAIT_MS_MAX:
                before = ahead_ms
            elif at_ms <= until_ms:
                ahead.add(ahead_ms)
        ahead.add(before)
        return max(ahead) - min(ahead)

    def doubt(self, key: str) -> None:
        """Note that it is being taken back: it may come or not."""
        self.recalling.add(key)
        with self._lock:
            for missing in self.missing.values():
                missing.discard(key)

    def take_back(self, key: str) -> None:
        """Note that it was taken back."""
        self.recalling.discard(key)
        self.recalled.add(key)

    def note(self, group: str, message: MessageExt) -> str:
        """Note that a listener of the group has done with the message; return its key."""
        key = key_of(message.body)
        arrival = Arrival(message.queue_id, message.queue_offset, message.reconsume_times, now_ms())
        with self._lock:
            self.seen[group][key].append(arrival)
            if self._is_done(group, key):
                self.missing[group].discard(key)
        return key

    def count_missing(self, is_wanted: Callable[[str], bool]) -> int:
        """Return how many deliveries are missing of messages whose keys are wanted."""
        with self._lock:
            return sum(map(is_wanted, chain.from_iterable(self.missing.values())))

    def _is_done(self, group: str, key: str) -> bool:
        """Return whether it came, and does not come again because a listener failed."""
        return any(
            group != TAKERS
            or not fails(key, arrival.reconsume_times)
            or arrival.reconsume_times >= TRIES_MAX
            for arrival in self.seen[group].get(key, ())
        )

    def fail(self, figure: str, text: str) -> None:
        self.failures.append((figure, text))


class Tries:
    """Counts how often each message leaves; a hook of producers."""

    def __init__(self, ledger: Ledger) -> None:
        self._tries = ledger.tries

    def before_send(self, attempt: SendAttempt) -> None:
        for message in attempt.messages:
            self._tries[message.keys[0]] += 1

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Need not know."""


def promise_all(ledger: Ledger, keys: Sequence[str], receipts: Sequence[SendReceipt]) -> None:
    for key, _ in zip(keys, receipts, strict=True):
        ledger.promise(key)
