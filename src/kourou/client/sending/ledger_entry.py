"""Entries of a send ledger: one JSON object a line. Pure.

    {"run":"7F0000011A2B-9f31c0aa","seq":7,"kind":"send","msgId":"7F00…","topic":"orders",
     "group":"shop","outcome":"stored","begunMs":1764110400000,"endedMs":1764110400003,
     "brokerName":"broker-a","queueId":2,"queueOffset":118,"lastSeq":9}

A run is one producer, from its start to its close. Its entries are numbered from 1 without a gap:
a number that is missing in the ledger belongs to an entry that was lost. One try of a send has one
number for each message; its entry may be written twice, first as `begun` and then with the outcome.
Fields that have their default are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec


class EntryKind(StrEnum):
    """Events that a ledger records."""

    OPENED = "opened"
    """The run begins; always number 1."""
    SEND = "send"
    """One try to send one message."""
    TRANSACTION_END = "transactionEnd"
    """A half message is committed, rolled back, or left to the check (`state`)."""
    RECALL = "recall"
    """A scheduled message is cancelled."""
    CLOSED = "closed"
    """The run ends; its entries are complete unless a number is missing."""


class EntryOutcome(StrEnum):
    """Results of an event, as the producer knows them."""

    BEGUN = "begun"
    """It may have taken effect: the entry was written before the answer arrived."""
    STORED = "stored"
    """The broker has confirmed it."""
    UNKNOWN = "unknown"
    """It may have taken effect: the answer did not arrive, or is not sent (one-way sends)."""
    REFUSED = "refused"
    """It has had no effect: the broker answered with an error code, or the request never left."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One event of a producer.

    Attributes:
        run: identifies the producer among all that write to the ledger.
        seq: number of the entry in its run.
        begun_ms: epoch ms, by the producer's clock.
        ended_ms: epoch ms of the outcome; 0 if there is none yet.
        last_seq: the highest number that was assigned when the event ended. Sends with higher
            numbers began later, whatever the clocks say.
        msg_id: the unique id of the message.
        group: the producer group.
        broker_name, queue_id: the destination.
        queue_offset: the position of the message; None if it is not stored, or is scheduled or half
            and gets its position later.
        attempt: number of the try, from 1.
        code: the response code of a refusal; None if the request never left.
        reason: class of the error, such as RequestTimeoutError.
        state: of a transaction's end: COMMIT, ROLLBACK or UNKNOWN.
        deliver_at_ms: delivery time of a scheduled message, if the producer has given one.
    """

    run: str
    seq: int
    kind: EntryKind
    begun_ms: int
    outcome: EntryOutcome
    ended_ms: int = 0
    last_seq: int = 0
    msg_id: str = ""
    topic: str = ""
    group: str = ""
    broker_name: str = ""
    queue_id: int = -1
    queue_offset: int | None = None
    attempt: int = 0
    sharding_key: str = ""
    is_oneway: bool = False
    is_half: bool = False
    is_scheduled: bool = False
    deliver_at_ms: int = 0
    code: int | None = None
    reason: str = ""
    state: str = ""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(LedgerEntry).decode


def encode_entries(entries: Iterable[LedgerEntry], bytes_max: int) -> Iterator[bytes]:
    """Yield bodies of lines with all entries in their order.

    Args:
        entries: the entries.
        bytes_max: maximum size of a body that has more than one line.
    """
    lines: list[bytes] = []
    size = 0
    for entry in entries:
        line = _encode(entry) + b"\n"
        if lines and size + len(line) > bytes_max:
            yield b"".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield b"".join(lines)


def decode_entries(body: bytes) -> Iterator[LedgerEntry | None]:
    """Yield the entries of a body; None for a line that was cut off or is damaged.

    A process that is killed may leave an incomplete last line in a file.
    """
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        try:
            yield _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield None
